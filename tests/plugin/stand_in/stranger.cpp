// A library that is not weft's.
extern "C" __attribute__((visibility("default"))) int stranger_value() { return 1; }
