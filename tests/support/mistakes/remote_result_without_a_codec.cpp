// DISTRIBUTED
#include <weft/distributed.h>

struct Table { int rows = 0; };
Table make() { return {}; }
WEFT_RPC(make);  // MISTAKE: this type neither travels (Codec, WEFT_FIELDS) nor is registered with WEFT_RPC_CLASS in its namespace
