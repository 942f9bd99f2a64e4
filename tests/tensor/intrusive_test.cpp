// The reference counts of bodies, storages and nodes: the last owner, weak pointers, and both at once.
#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include <weft/tensor/intrusive.h>

namespace weft {
namespace {

/// Its memory belongs to the test, so that weak pointers may be tried after the end of the object.
struct Counted : RefCounted {
  static void destroy(Counted* c) { c->destroyed.fetch_add(1); }
  std::atomic<int> destroyed{0};
  int written = 0;
};

TEST(RefCount, the_last_owner_destroys_once) {
  Counted object;
  Ref<Counted> a = Ref<Counted>::adopt(&object), b = a;
  EXPECT_EQ(object.use_count(), 2u);
  a.reset();
  EXPECT_EQ(object.destroyed, 0);
  b = Ref<Counted>();
  EXPECT_EQ(object.destroyed, 1);
}

TEST(RefCount, a_weak_pointer_finds_the_object_until_its_last_owner_leaves) {
  Counted object;
  Ref<Counted> owner = Ref<Counted>::adopt(&object);
  object.allow_weak();
  object.allow_weak();
  EXPECT_EQ(object.use_count(), 1u);
  ASSERT_TRUE(object.try_retain());
  EXPECT_EQ(object.use_count(), 2u);
  owner.reset();
  EXPECT_EQ(object.destroyed, 0);
  Ref<Counted>::adopt(&object).reset();
  EXPECT_EQ(object.destroyed, 1);
  EXPECT_EQ(object.use_count(), 0u);
  EXPECT_FALSE(object.try_retain());
}

TEST(RefCount, the_destroying_thread_sees_the_writes_of_all_owners) {
  for (int i = 0; i < 503; ++i) {
    Counted object;
    Ref<Counted> mine = Ref<Counted>::adopt(&object);
    std::thread other([theirs = mine]() mutable {
      theirs->written = 7;
      theirs.reset();
    });
    while (object.use_count() != 1 && object.destroyed == 0) std::this_thread::yield();
    EXPECT_EQ(object.written, 7);
    mine.reset();
    EXPECT_EQ(object.destroyed, 1);
    other.join();
  }
}

TEST(RefCount, a_weak_pointer_and_the_last_owner_may_race) {
  for (int i = 0; i < 503; ++i) {
    Counted object;
    object.allow_weak();
    Ref<Counted> owner = Ref<Counted>::adopt(&object);
    std::atomic<bool> go{false};
    std::thread weak([&] {
      while (!go) std::this_thread::yield();
      if (!object.try_retain()) return;
      EXPECT_EQ(object.destroyed, 0);
      Ref<Counted>::adopt(&object).reset();
    });
    go = true;
    owner.reset();
    weak.join();
    EXPECT_EQ(object.destroyed, 1);
  }
}

}  // namespace
}  // namespace weft
