// Segments of a peer that breaks the rules of shared memory, of one that is killed, and at the limits of this
// process. A test is a member that writes the records and passes the files by itself. shared_memory_test.cpp
// has peers that keep the rules.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>

#include <weft/distributed/launch/spawn.h>
#include <weft/distributed/transport/inner/shared_memory.h>

#include "raw_peer.h"
#include "shared_pair.h"
#include "support/child_environment.h"
#include "support/process.h"

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;
using inner::File;
using inner::RecordType;

constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

File memory_file(size_t bytes, int seals = kSealed, unsigned kind = 0) {
  File file(memfd_create("weft-test", MFD_CLOEXEC | MFD_ALLOW_SEALING | kind));
  if (file.get() < 0 || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return File();
  if (seals != 0) fcntl(file.get(), F_ADD_SEALS, seals);
  return file;
}

std::string segment(uint32_t number) { return inner::encode_segment(RecordType::kSegment, number); }

/// A message whose payload of `bytes` is in a segment.
std::string message_in(uint32_t number, int64_t bytes) {
  std::vector<Payload> payloads(1);
  payloads[0].data = &number, payloads[0].bytes = bytes;
  const auto message =
      inner::make_out_message(3, "head", std::move(payloads), {.max_message_bytes = INT64_MAX});
  message->head[inner::kBeginBytes + 7] |= static_cast<char>(inner::kSharedMark >> 56);
  std::string stub;
  for (int shift = 0; shift < 32; shift += 8) stub += static_cast<char>(number >> shift);
  message->payloads[0] = {stub.data(), 4, kHostDevice, {}};
  message->bytes = static_cast<int64_t>(message->head.size()) + 4;
  inner::OutCursor cursor{message};
  inner::Frame frame;
  inner::append_message(frame, cursor);
  return frame.flat();
}

/// Worker 1 with the member 2, whose records the test writes, beside worker 0.
struct Forger {
  explicit Forger(int64_t of_b = 256 << 20) : p(256 << 20, of_b) {
    p.b.t->add_peer(WorkerId{2}, {.addresses = {"127.0.0.1:9"}, .incarnation = Incarnation{7}});
  }
  std::unique_ptr<RawLane> connect() {
    auto raw = std::make_unique<RawLane>(lane_path_of(*p.b.t), lane_hello({.features = inner::kTakesSegments,
                                                                           .id = WorkerId{2},
                                                                           .incarnation = Incarnation{7},
                                                                           .target = WorkerId{1}}));
    EXPECT_NE(raw->read_frame(), "");
    return raw;
  }
  /// A first payload, before a limit of files: a sanitizer opens a pipe where it first sees a type.
  void take_one(RawLane& raw) {
    const File file = memory_file(1 << 20);
    EXPECT_TRUE(raw.write_with_files(lane_frame(segment(7) + message_in(7, 1000)), {file.get()}));
    EXPECT_TRUE(p.b.box.wait_for(2));
  }
  /// The written bytes end the member's connection for that reason, and nothing else.
  void expect_end(RawLane& raw, const std::string& words) {
    EXPECT_TRUE(raw.read_to_end()) << words;
    states += (states.empty() ? "" : " ") + std::string("up broken");
    EXPECT_TRUE(p.b.box.wait_for_state(WorkerId{2}, states)) << p.b.box.states(WorkerId{2});
    EXPECT_NE(p.b.box.reason(WorkerId{2}).find("wire: " + words), std::string::npos)
        << p.b.box.reason(WorkerId{2}) << " instead of " << words;
    p.connect();
    EXPECT_EQ(p.b.box.states(WorkerId{0}), "up");
  }
  SharedPair p;
  std::string states;
};

TEST(Segments, a_member_that_passes_sealed_files_is_heard) {
  Forger f;
  const auto raw = f.connect();
  const auto bytes = pattern(300'000, 1);
  const File file = memory_file(1 << 20);
  ASSERT_EQ(pwrite(file.get(), bytes.data(), bytes.size(), inner::kSegmentHead), 300'000);
  const uint32_t lent = 1;
  ASSERT_EQ(pwrite(file.get(), &lent, 4, 0), 4);
  const std::string frame = lane_frame(segment(9) + message_in(9, 300'000));
  ASSERT_TRUE(raw->write(frame.substr(0, 4)));
  ASSERT_TRUE(raw->write_with_files(frame.substr(4, 1), {file.get()}));
  for (const char c : frame.substr(5)) ASSERT_TRUE(raw->write(std::string(1, c)));
  ASSERT_TRUE(f.p.b.box.wait_for(2));
  EXPECT_TRUE(holds(f.p.b.box.at(0).payloads[0], bytes));
  uint32_t word = 0;
  ASSERT_EQ(pread(file.get(), &word, 4, 0), 4);
  EXPECT_EQ(word, 1u);
  f.p.b.box.forget_all();
  ASSERT_EQ(pread(file.get(), &word, 4, 0), 4);
  EXPECT_EQ(word, 0u);
  ASSERT_TRUE(raw->write(lane_frame(message_in(9, 300'000))));  // the segment is known
  ASSERT_TRUE(f.p.b.box.wait_for(3));
  EXPECT_EQ(f.p.b.box.states(WorkerId{2}), "up");
}

TEST(Segments, files_that_are_no_sealed_memory_end_the_link_and_are_closed) {
  Forger f;
  const std::string path = ::testing::TempDir() + str("weft_segment_", getpid());
  const File on_disk(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  ASSERT_EQ(ftruncate(on_disk.get(), 1 << 20), 0);
  unlink(path.c_str());
  const File whole = memory_file(1 << 20);
  const File read_only(open(str("/proc/self/fd/", whole.get()).c_str(), O_RDONLY | O_CLOEXEC));
  const File folder(open("/", O_RDONLY | O_CLOEXEC | O_DIRECTORY));
  const File open_size = memory_file(1 << 20, 0), may_shrink = memory_file(1 << 20, F_SEAL_GROW);
  const File no_payload = memory_file(inner::kSegmentHead), empty = memory_file(0);
  const File huge = memory_file(4 << 20, kSealed, MFD_HUGETLB);
  const File no_writes = memory_file(1 << 20, kSealed | F_SEAL_WRITE);
  const File device(open("/dev/zero", O_RDWR | O_CLOEXEC));
  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const File pipe_out(ends[0]), pipe_in(ends[1]);
  std::vector<std::pair<int, std::string>> files{{on_disk.get(), "the file of a segment is no"},
                                                 {folder.get(), "the file of a segment is no memory file"},
                                                 {device.get(), "the file of a segment is no memory file"},
                                                 {pipe_in.get(), "the file of a segment is no memory file"},
                                                 {no_writes.get(), "segment 0 cannot be written to"},
                                                 {open_size.get(), "the file of a segment is not sealed"},
                                                 {may_shrink.get(), "the file of a segment is not sealed"},
                                                 {no_payload.get(), "a segment of 4096 bytes"},
                                                 {empty.get(), "a segment of 0 bytes"},
                                                 {read_only.get(), "segment 0 cannot be written to"}};
  if (huge.get() >= 0) files.emplace_back(huge.get(), "the file of a segment is no memory file");
  const auto before = open_files();
  for (const auto& [file, words] : files) {
    const auto raw = f.connect();
    ASSERT_TRUE(raw->write_with_files(lane_frame(segment(0) + message_in(0, 1000)), {file}));
    f.expect_end(*raw, words);
  }
  EXPECT_LE(open_files(), before);
}

TEST(Segments, records_that_lie_end_the_link_and_their_files_are_closed) {
  Forger f;
  const File file = memory_file(1 << 20), other = memory_file(1 << 20);
  const auto before = open_files();
  const std::string known = lane_frame(segment(0) + message_in(0, 1000));
  struct Lie {
    std::string bytes, words;
    std::vector<int> files = {};
  };
  const std::string forget = inner::encode_segment(RecordType::kForget, 5);
  const int64_t room = (1 << 20) - 4096;
  for (const Lie& lie : std::vector<Lie>{
           {lane_frame(segment(1)), "segment 1 came without its file"},
           {lane_frame(message_in(0, 1000)), "a second payload in segment 0"},
           {lane_frame(message_in(1, 1000)), "a payload in the unknown segment 1"},
           {lane_frame(segment(1) + message_in(1, room + 1)), "a payload of", {other.get()}},
           {lane_frame(segment(1) + message_in(1, int64_t{15} << 30)), "a payload of", {other.get()}},
           {lane_frame(message_in(0, int64_t{1} << 62)), "a message declares"},
           {lane_frame(forget), "the end of the unknown segment 5"},
           {lane_frame(segment(1).substr(0, 4) + std::string("\3\0\0\0", 4) + "123"),
            "a record of a segment without its number"},
           {lane_frame(begin_of_message(3, "plain", {}, 1000)),
            "a file came that no record names",
            {other.get()}},
           {lane_frame(segment(1)), "several files came at once", {other.get(), file.get()}}}) {
    SCOPED_TRACE(lie.words);
    const auto raw = f.connect();
    const size_t come = f.p.b.box.count;
    ASSERT_TRUE(raw->write_with_files(known, {file.get()}));
    ASSERT_TRUE(f.p.b.box.wait_for(come + 1));  // held from now on
    if (lie.files.empty()) ASSERT_TRUE(raw->write(lie.bytes));
    else ASSERT_TRUE(raw->write_with_files(lie.bytes, lie.files));
    f.expect_end(*raw, lie.words);
  }
  EXPECT_LE(open_files(), before);
}

TEST(Segments, the_whole_of_a_segment_may_be_a_payload_and_not_more) {
  Forger f;
  const auto raw = f.connect();
  const File file = memory_file(1 << 20);
  ASSERT_TRUE(raw->write_with_files(lane_frame(segment(0) + message_in(0, (1 << 20) - 4096)), {file.get()}));
  ASSERT_TRUE(f.p.b.box.wait_for(2));
  const Block& block = f.p.b.box.at(0).payloads[0];
  static_cast<char*>(block.data)[block.bytes - 1] = 1;
}

TEST(Segments, their_number_is_bounded) {
  Forger f;
  const auto raw = f.connect();
  const File file = memory_file(8192);
  for (uint32_t i = 0; i < inner::kMostSegments; ++i)
    ASSERT_TRUE(raw->write_with_files(lane_frame(segment(i)), {file.get()}));
  ASSERT_TRUE(raw->write(lane_frame(inner::encode_segment(RecordType::kForget, 3))));
  ASSERT_TRUE(raw->write_with_files(lane_frame(segment(3)), {file.get()}));
  ASSERT_TRUE(raw->write_with_files(lane_frame(segment(9000)), {file.get()}));
  f.expect_end(*raw, "more than 256 segments of one connection");
}

TEST(Segments, a_side_that_has_shared_memory_off_takes_neither_files_nor_records) {
  Forger f(0);
  const File file = memory_file(1 << 20);
  const auto before = open_files();
  for (const std::string& bytes :
       {lane_frame(segment(0)), lane_frame(inner::encode_segment(RecordType::kForget, 0)),
        lane_frame(message_in(0, 1000))}) {
    const auto raw = f.connect();
    ASSERT_TRUE(raw->write_with_files(bytes, {file.get()}));
    f.expect_end(*raw, "shared memory on a connection that has none");
  }
  EXPECT_LE(open_files(), before);
}

/// The text of the error of an unread message.
std::string why_unread(SharingBox& box, size_t i) {
  MutexLock lock(box.mutex);
  try {
    std::rethrow_exception(box.unread.at(i).unread);
  } catch (const OutOfMemoryError& e) {
    return e.what();
  }
}

TEST(Segments, without_a_free_file_number_a_payload_has_an_error_and_the_link_goes_on) {
  Forger f;
  const auto raw = f.connect();
  f.take_one(*raw);
  const File file = memory_file(1 << 20);
  bool written = false, come = false;
  {
    const OtherLimit none(RLIMIT_NOFILE, 0);
    ASSERT_TRUE(none.set);
    written = raw->write_with_files(lane_frame(segment(0)), {file.get()}) &&
              raw->write_with_files(lane_frame(segment(0) + message_in(0, 1000)), {file.get()});
    come = f.p.b.box.wait_for(3);
  }
  ASSERT_TRUE(written);
  ASSERT_TRUE(come);
  ASSERT_EQ(f.p.b.box.unread.size(), 1u);
  EXPECT_NE(why_unread(f.p.b.box, 0).find("a payload of 1000 bytes in shared memory: all 0 files"),
            std::string::npos)
      << why_unread(f.p.b.box, 0);
  ASSERT_TRUE(raw->write_with_files(lane_frame(segment(1) + message_in(1, 1000)), {file.get()}));
  ASSERT_TRUE(f.p.b.box.wait_for(4));
  ASSERT_TRUE(raw->write_with_files(lane_frame(segment(0) + message_in(0, 1000)), {file.get()}));
  ASSERT_TRUE(f.p.b.box.wait_for(5));  // it has come again
  EXPECT_EQ(f.p.b.box.unread.size(), 1u);
  EXPECT_EQ(f.p.b.box.states(WorkerId{2}), "up");
}

TEST(Segments, a_process_at_its_limit_of_files_takes_a_file_that_comes_twice) {
  Forger f;
  const auto raw = f.connect();
  f.take_one(*raw);
  const auto bytes = pattern(400'000, 3);
  const File file = memory_file(1 << 20), other = memory_file(1 << 20);
  ASSERT_EQ(pwrite(file.get(), bytes.data(), bytes.size(), inner::kSegmentHead), 400'000);
  for (uint32_t i = 0; i < 3; ++i) {
    const std::string record = lane_frame(segment(i));
    bool written = false, come = false;
    {
      const OtherLimit few(RLIMIT_NOFILE, 256);
      ASSERT_TRUE(few.set);
      std::vector<File> all;
      for (int fd = 0; fd >= 0; all.emplace_back(fd)) fd = dup(file.get());
      written = raw->write_with_files(record, {file.get()}) && raw->write_with_files(record, {file.get()}) &&
                raw->write(lane_frame(message_in(i, 400'000)));
      come = f.p.b.box.wait_for(3 + i);
    }
    ASSERT_TRUE(written);
    ASSERT_TRUE(come);
    ASSERT_EQ(f.p.b.box.unread.size(), 0u) << why_unread(f.p.b.box, 0);
    EXPECT_TRUE(holds(f.p.b.box.at(1 + i).payloads[0], bytes)) << i;
  }
  const auto files = open_files();
  ASSERT_TRUE(raw->write_with_files(lane_frame(segment(0)), {other.get()}));  // of no use any more
  ASSERT_TRUE(raw->write_with_files(lane_frame(segment(3) + message_in(3, 400'000)), {file.get()}));
  ASSERT_TRUE(f.p.b.box.wait_for(6));
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(holds(f.p.b.box.at(1 + i).payloads[0], bytes)) << i;
  EXPECT_LE(open_files(), files);
  EXPECT_EQ(f.p.b.box.states(WorkerId{2}), "up");
}

TEST(Segments, without_address_space_a_payload_has_an_error_and_the_next_one_in_its_segment_none) {
  Forger f;
  const auto raw = f.connect();
  const File file = memory_file(512 << 20);
  const uint32_t lent = 1;
  ASSERT_EQ(pwrite(file.get(), &lent, 4, 0), 4);
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  bool written = false, come = false;
  {
    const OtherLimit few(RLIMIT_AS, pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (256 << 20));
    ASSERT_TRUE(few.set);
    written = raw->write_with_files(lane_frame(segment(0) + message_in(0, 1000)), {file.get()});
    come = f.p.b.box.wait_for(2);
  }
  ASSERT_TRUE(written);
  ASSERT_TRUE(come);
  ASSERT_EQ(f.p.b.box.unread.size(), 1u);
  EXPECT_NE(why_unread(f.p.b.box, 0).find("RLIMIT_AS"), std::string::npos) << why_unread(f.p.b.box, 0);
  uint32_t word = 1;
  ASSERT_EQ(pread(file.get(), &word, 4, 0), 4);
  EXPECT_EQ(word, 0u);  // given back
  ASSERT_TRUE(raw->write(lane_frame(message_in(0, 1000))));
  ASSERT_TRUE(f.p.b.box.wait_for(3));
  EXPECT_EQ(f.p.b.box.unread.size(), 1u);
  EXPECT_EQ(f.p.b.box.states(WorkerId{2}), "up");
}

TEST(Segments, of_messages_that_cannot_leave_keep_few_files_open) {
  const auto small = pattern(200'000, 1), large = pattern(300'000, 2);
  Forger f;
  const auto raw = f.connect();
  for (int i = 0; i < 40; ++i) f.p.b.t->send(WorkerId{2}, 3, "fills the socket", payloads_of(small));
  const auto before = open_files();
  for (int i = 0; i < 100; ++i) f.p.b.t->send(WorkerId{2}, 3, "", payloads_of(large));
  EXPECT_EQ(mapped_segments(), 64);
  EXPECT_LE(open_files(), before + 64);
  EXPECT_EQ(f.p.b.t->shared_memory().no_room, 36u);
}

TEST(Segments, a_copy_of_the_process_gives_no_payload_back) {
  Forger f;
  const auto raw = f.connect();
  const File file = memory_file(1 << 20);
  const uint32_t lent = 1;
  ASSERT_EQ(pwrite(file.get(), &lent, 4, 0), 4);
  ASSERT_TRUE(raw->write_with_files(lane_frame(segment(0) + message_in(0, 1000)), {file.get()}));
  ASSERT_TRUE(f.p.b.box.wait_for(2));
  Block& block = f.p.b.box.at(0).payloads[0];
  const pid_t child = fork();
  if (child == 0) {  // as its static tensors do at its exit
    block.release.reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  uint32_t word = 0;
  ASSERT_EQ(pread(file.get(), &word, 4, 0), 4);
  EXPECT_EQ(word, 1u);
  block.release.reset();
  ASSERT_EQ(pread(file.get(), &word, 4, 0), 4);
  EXPECT_EQ(word, 0u);
}

TEST(Segments, of_messages_that_wait_for_another_link_go_with_theirs) {
  const auto small = pattern(200'000, 1), large = pattern(800'000, 2);
  Forger f;
  auto raw = f.connect();
  for (int i = 0; i < 40; ++i) f.p.b.t->send(WorkerId{2}, 3, "fills the socket", payloads_of(small));
  for (int i = 0; i < 5; ++i) f.p.b.t->send(WorkerId{2}, 3, "", payloads_of(large));
  EXPECT_EQ(mapped_segments(), 5);
  raw.reset();
  ASSERT_TRUE(f.p.b.box.wait_for_state(WorkerId{2}, "up broken"));
  EXPECT_GT(f.p.b.t->counters(WorkerId{2}).queued_bytes, 4'000'000);
  EXPECT_EQ(f.p.b.t->shared_memory().bytes, 0);
  EXPECT_EQ(mapped_segments(), 0);
}

TEST(Segments, files_of_a_member_before_its_welcome_are_dropped) {
  Forger f;
  const File file = memory_file(1 << 20);
  const auto before = open_files();
  RawLane raw(lane_path_of(*f.p.b.t));
  const std::string hello =
      lane_hello({.id = WorkerId{2}, .incarnation = Incarnation{7}, .target = WorkerId{1}});
  ASSERT_TRUE(raw.write_with_files(hello, {file.get()}));
  ASSERT_NE(raw.read_frame(), "");
  ASSERT_TRUE(raw.write(lane_frame(segment(0))));
  f.expect_end(raw, "segment 0 came without its file");
  EXPECT_LE(open_files(), before + 1);  // the test's own end
}

// ---- processes that are killed

/// Answers each message with a shared payload, and keeps those of its own.
int sharing_child(const std::string&, int) {
  const auto rt = make_threaded_runtime();
  const auto bytes = pattern(900'000, 5);
  SharedEnd end(rt, {.id = WorkerId{1}, .admit_strangers = true});
  end.box.handle_with([&, held = std::make_shared<std::vector<Inbound>>()](Inbound m) {
    end.t->send(m.from, 2, "answer", payloads_of(bytes));
    held->push_back(std::move(m));
  });
  const std::string path = std::getenv("WEFT_TEST_FILE");
  std::ofstream(path + ".new") << lane_path_of(*end.t);
  std::rename((path + ".new").c_str(), path.c_str());
  end.box.wait_for(1'000'000, 10min);
  return 0;
}
TEST(Segments, a_process_started_by_these_tests_does_its_job) { test::do_job(sharing_child); }

TEST(Segments, of_a_killed_process_stay_readable_and_those_lent_to_it_go) {
  auto rt = make_threaded_runtime();
  const std::string file = ::testing::TempDir() + str("weft_segments_", getpid());
  Children child =
      spawn({.world_size = 1,
             .arguments = {"--gtest_filter=Segments.a_process_started_by_these_tests_does_its_job",
                           "--gtest_brief=1"},
             .own_arguments = false,
             .environment = test::child_environment({{"WEFT_TEST_JOB", "share"}, {"WEFT_TEST_FILE", file}})});
  for (int i = 0; i < 6000 && access(file.c_str(), F_OK) != 0; ++i) rt->sleep_for(10ms);
  std::string path;
  std::ifstream(file) >> path;
  unlink(file.c_str());
  ASSERT_NE(path, "");
  const auto bytes = pattern(900'000, 5), own = pattern(800'000, 6);
  const SharedEnd other(rt, {.id = WorkerId{2}});  // gRPC has files of its own while a process uses it
  const auto files = open_files();
  {
    SharedEnd a(rt, {.id = WorkerId{0}, .reconnect_timeout = 300ms});
    a.t->add_peer(WorkerId{1}, {.addresses = {"unix:" + path}});
    a.t->send(WorkerId{1}, 1, "first");
    ASSERT_TRUE(a.box.wait_for(1));
    for (size_t i = 0; i < 5; ++i) {
      a.t->send(WorkerId{1}, 1, "", payloads_of(own));
      ASSERT_TRUE(a.box.wait_for(2 + i));
    }
    EXPECT_EQ(a.t->shared_memory().payloads, 5u);
    EXPECT_GT(a.t->shared_memory().bytes, 4'000'000);
    child.terminate(*rt, 0s);  // SIGKILL
    ASSERT_TRUE(a.box.wait_for_state(WorkerId{1}, "up broken"));
    EXPECT_EQ(a.t->shared_memory().bytes, 0);
    ASSERT_TRUE(a.box.at(5).payloads[0].shared);
    EXPECT_EQ(mapped_segments(), 6);  // the answers
    for (size_t i = 0; i < 6; ++i) {
      const Block& block = a.box.at(i).payloads[0];
      EXPECT_TRUE(holds(block, bytes)) << i;
      std::memset(block.data, 1, 900'000);
    }
    a.box.forget_all();
    EXPECT_EQ(mapped_segments(), 0);
  }
  EXPECT_LE(open_files(), files);
  unlink(path.c_str());
}

}  // namespace
}  // namespace weft::rpc
