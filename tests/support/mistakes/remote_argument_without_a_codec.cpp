// DISTRIBUTED
#include <weft/distributed.h>

struct Point { double x, y; };
double length(const Point& p) { return p.x + p.y; }
WEFT_RPC(length);  // MISTAKE: a parameter of this type cannot travel: give it WEFT_FIELDS or a Codec
