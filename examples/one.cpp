#include <weft/weft.h>
int common_zz(); int main(){return common_zz();}
