// Whether an address lies in the program itself, and not in a shared library such as gRPC's. Tests use it to
// tell by the return address whose code asks for a lock or for memory.
#pragma once

extern "C" const char __executable_start, etext;  // by the linker

namespace weft::test {

inline bool is_own_code(const void* address) { return address >= &__executable_start && address < &etext; }

}  // namespace weft::test
