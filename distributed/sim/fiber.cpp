// Fibers on Boost.Context's raw switch. The sanitizers need a pair of calls around each jump, as their
// headers demand. The first names the target stack before the jump, the second comes first after it.
#include <weft/distributed/sim/inner/fiber.h>

#include <cxxabi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <boost/context/detail/fcontext.hpp>
#include <cstring>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define WEFT_FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WEFT_FIBER_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define WEFT_FIBER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WEFT_FIBER_TSAN 1
#endif
#endif
#ifdef WEFT_FIBER_ASAN
#include <sanitizer/asan_interface.h>
#endif
#ifdef WEFT_FIBER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace weft::rpc::inner {
namespace ctx = boost::context::detail;
namespace {

/// The per-thread state of the Itanium C++ ABI: the caught exceptions and the count of uncaught ones.
struct ExceptionState {
  void* caught = nullptr;
  unsigned int uncaught = 0;
};
void swap_exception_state(ExceptionState& other) {
  void* globals = abi::__cxa_get_globals();
  ExceptionState mine;
  std::memcpy(static_cast<void*>(&mine), globals, sizeof(void*) + sizeof(unsigned int));
  std::memcpy(globals, &other, sizeof(void*) + sizeof(unsigned int));
  other = mine;
}

}  // namespace

struct Fiber::Impl {
  std::function<void()> body;
  void* memory = nullptr;  // guard page first, stack above
  size_t size = 0;
  ctx::fcontext_t inside = nullptr;   // the suspended fiber
  ctx::fcontext_t outside = nullptr;  // the context that resumed it
  bool leaving = false;
  ExceptionState exceptions;
#ifdef WEFT_FIBER_ASAN
  void* inside_fake = nullptr;
  void* outside_fake = nullptr;
  const void* outside_stack = nullptr;
  size_t outside_size = 0;
#endif
#ifdef WEFT_FIBER_TSAN
  void* inside_tsan = nullptr;
  void* outside_tsan = nullptr;
#endif

  static size_t page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

  void go_in() {
    swap_exception_state(exceptions);
#ifdef WEFT_FIBER_ASAN
    __sanitizer_start_switch_fiber(&outside_fake, static_cast<char*>(memory) + page(), size - page());
#endif
#ifdef WEFT_FIBER_TSAN
    outside_tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(inside_tsan, 0);
#endif
    inside = ctx::jump_fcontext(inside, this).fctx;
#ifdef WEFT_FIBER_ASAN
    __sanitizer_finish_switch_fiber(outside_fake, nullptr, nullptr);
#endif
    swap_exception_state(exceptions);
  }

  void go_out(bool for_good) {
#ifdef WEFT_FIBER_ASAN
    __sanitizer_start_switch_fiber(for_good ? nullptr : &inside_fake, outside_stack, outside_size);
#else
    (void)for_good;
#endif
#ifdef WEFT_FIBER_TSAN
    __tsan_switch_to_fiber(outside_tsan, 0);
#endif
    outside = ctx::jump_fcontext(outside, nullptr).fctx;
#ifdef WEFT_FIBER_ASAN
    __sanitizer_finish_switch_fiber(inside_fake, &outside_stack, &outside_size);
#endif
  }

  static void entry(ctx::transfer_t from) {
    auto* self = static_cast<Impl*>(from.data);
    self->outside = from.fctx;
#ifdef WEFT_FIBER_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &self->outside_stack, &self->outside_size);
#endif
    while (!self->leaving) {
      self->body();
      self->go_out(false);
    }
    self->go_out(true);
  }
};

Fiber::Fiber(size_t stack_bytes, std::function<void()> body) : impl_(new Impl) {
  const size_t page = Impl::page();
#if defined(WEFT_FIBER_ASAN) || defined(WEFT_FIBER_TSAN)
  stack_bytes *= 4;  // test code is not optimised there
#endif
  impl_->size = (stack_bytes + page - 1) / page * page + page;
  impl_->memory = mmap(nullptr, impl_->size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (impl_->memory == MAP_FAILED) {
    delete impl_;
    throw std::bad_alloc();
  }
  mprotect(impl_->memory, page, PROT_NONE);
  impl_->body = std::move(body);
  impl_->inside =
      ctx::make_fcontext(static_cast<char*>(impl_->memory) + impl_->size, impl_->size - page, &Impl::entry);
#ifdef WEFT_FIBER_TSAN
  impl_->inside_tsan = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
  impl_->leaving = true;
  impl_->go_in();  // the last switch out frees the sanitizer's state of the fiber
#ifdef WEFT_FIBER_TSAN
  __tsan_destroy_fiber(impl_->inside_tsan);
#endif
#ifdef WEFT_FIBER_ASAN
  // The frame of entry() has not returned. Its marks would stay for the next memory at these addresses: GCC
  // 12's sanitizer clears none at munmap and mmap.
  __asan_unpoison_memory_region(impl_->memory, impl_->size);
#endif
  munmap(impl_->memory, impl_->size);
  delete impl_;
}

void Fiber::resume() { impl_->go_in(); }
void Fiber::suspend() { impl_->go_out(false); }

}  // namespace weft::rpc::inner
