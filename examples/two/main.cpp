#include <weft/distributed/zz.h>
int common_zz(); int main(){return common_zz();}
