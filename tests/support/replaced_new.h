// The operators new and delete of a test program, which may fail (scarce_memory.h). One file of the program
// includes this.
#pragma once

#include <cstdlib>
#include <new>

#include "support/own_code.h"
#include "support/scarce_memory.h"

namespace weft::test {

/// `asks`: the code that asks for memory.
inline void* new_or_null(std::size_t bytes, const void* asks) noexcept {
  allocations_made.fetch_add(1, std::memory_order_relaxed);
  if (is_own_code(asks)) own_allocations_made.fetch_add(1, std::memory_order_relaxed);
  AllocationsLeft& a = allocations_left;
  if (a.none != nullptr && a.none->load()) return nullptr;
  if (a.counted && --a.left < 0) {
    a.left = 0;
    if (a.failures > 0) {
      --a.failures;
      ++a.failed;
      return nullptr;
    }
  }
  return std::malloc(bytes > 0 ? bytes : 1);
}
inline void* new_or_throw(std::size_t bytes, const void* asks) {
  if (void* const memory = new_or_null(bytes, asks)) return memory;
  throw std::bad_alloc();
}

}  // namespace weft::test

#if !defined(__SANITIZE_THREAD__)
// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name)
void* operator new(std::size_t bytes) { return weft::test::new_or_throw(bytes, __builtin_return_address(0)); }
void* operator new[](std::size_t bytes) {
  return weft::test::new_or_throw(bytes, __builtin_return_address(0));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return weft::test::new_or_null(bytes, __builtin_return_address(0));
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return weft::test::new_or_null(bytes, __builtin_return_address(0));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
// NOLINTEND(readability-inconsistent-declaration-parameter-name)
#endif
