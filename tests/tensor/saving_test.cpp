// Where a saved file lands: behind links, with the mode of the old one, whole or not at all. Every writer has
// the same manners.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <weft/tensor/factories.h>
#include <weft/tensor/io/npy.h>
#include <weft/tensor/io/write_file.h>

#include "support/errors.h"

namespace weft {
namespace {

using test::error_of;
using test::has;

namespace fs = std::filesystem;

struct Writer {
  const char* name;
  std::function<void(const std::string&, int64_t)> write;  // `count` bytes at least
};
const Writer kWriters[] = {
    {"save_safetensors",
     [](const std::string& path, int64_t count) {
       save_safetensors(path, {{"x", ones({count})}});
     }},
    {"save_npy", [](const std::string& path, int64_t count) { save_npy(path, ones({count})); }},
    {"save_npz",
     [](const std::string& path, int64_t count) {
       save_npz(path, {{"x", ones({count})}});
     }},
    {"write_file", [](const std::string& path,
                      int64_t count) { write_file(path, std::string(static_cast<size_t>(count), '1')); }},
};

class Saving : public testing::TestWithParam<Writer> {
 protected:
  void SetUp() override {
    std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    for (char& c : name) c = c == '/' ? '_' : c;
    dir_ = fs::temp_directory_path() / ("weft_saving_" + std::to_string(getpid()) + "_" + name);
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  void old_file(const std::string& name) const { std::ofstream(path(name)) << "old"; }
  static std::string read(const std::string& p) {
    std::ifstream in(p, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static unsigned mode(const std::string& p) {
    struct stat info {};
    EXPECT_EQ(stat(p.c_str(), &info), 0);
    return info.st_mode & 07777;
  }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(dir_), fs::directory_iterator{}));
  }
  void save(const std::string& name, int64_t count = 5) const { GetParam().write(path(name), count); }
  /// The text with which the writer refuses; it names the path as it was given.
  std::string refusal(const std::string& name, int64_t count = 5) const {
    const std::string text = error_of<IoError>([&] { save(name, count); });
    EXPECT_TRUE(has(text, "cannot write " + path(name) + ": "));
    return text;
  }
  fs::path dir_;
};

TEST_P(Saving, follows_a_link_and_leaves_it) {
  fs::create_directory(dir_ / "data");
  old_file("data/target");
  fs::create_symlink("data/target", dir_ / "link");
  fs::create_symlink(path("link"), dir_ / "link_of_a_link");
  save("plain");
  save("link_of_a_link");
  EXPECT_TRUE(fs::is_symlink(dir_ / "link") && fs::is_symlink(dir_ / "link_of_a_link"));
  EXPECT_EQ(read(path("data/target")), read(path("plain")));
}

TEST_P(Saving, makes_the_file_that_a_link_names) {
  fs::create_symlink("target", dir_ / "link");
  save("link");
  EXPECT_TRUE(fs::is_symlink(dir_ / "link"));
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(dir_ / "target")));
  EXPECT_EQ(entries(), 2u);
}

TEST_P(Saving, keeps_the_mode_of_an_existing_file) {
  old_file("x");
  for (const unsigned m : {0600u, 0640u, 0666u, 0755u}) {
    chmod(path("x").c_str(), m);
    save("x");
    EXPECT_EQ(mode(path("x")), m);
  }
  EXPECT_NE(read(path("x")), "old");
}

TEST_P(Saving, gives_a_new_file_the_usual_mode) {
  const mode_t before = umask(027);
  save("x");
  umask(before);
  EXPECT_EQ(mode(path("x")), 0640u);
}

TEST_P(Saving, refuses_a_folder_a_pipe_a_device_and_a_ring_of_links) {
  fs::create_directory(dir_ / "folder");
  EXPECT_TRUE(has(refusal("folder"), "Is a directory"));
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(has(refusal("pipe"), "not a regular file"));
  fs::create_symlink("/dev/null", dir_ / "null");
  EXPECT_TRUE(has(refusal("null"), "not a regular file"));
  if (mknod(path("device").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0) {
    EXPECT_TRUE(has(refusal("device"), "not a regular file"));
    EXPECT_TRUE(fs::is_character_file(dir_ / "device"));
  }
  fs::create_symlink("ring", dir_ / "ring");
  EXPECT_TRUE(has(refusal("ring"), "Too many levels"));
  EXPECT_TRUE(has(refusal("absent/x"), "No such file"));
  EXPECT_TRUE(has(refusal("slash/"), "Is a directory"));
  EXPECT_TRUE(fs::is_directory(dir_ / "folder") && fs::is_fifo(dir_ / "pipe"));
}

TEST_P(Saving, refuses_the_link_of_an_open_file) {
  old_file("x");
  std::FILE* open = std::fopen(path("x").c_str(), "a");
  fs::create_symlink(str("/proc/self/fd/", fileno(open)), dir_ / "open");
  EXPECT_TRUE(has(refusal("open"), "not a regular file"));
  std::fclose(open);
  EXPECT_EQ(read(path("x")), "old");
}

TEST_P(Saving, a_file_that_may_not_be_written_stays) {
  old_file("x");
  chmod(path("x").c_str(), 0444);
  chmod(dir_.c_str(), 0777);
  const uid_t self = geteuid(), nobody = 65534;
  if (self == 0) {
    ASSERT_EQ(seteuid(nobody), 0);  // root may write any file
  }
  EXPECT_TRUE(has(refusal("x"), "Permission denied"));
  ASSERT_EQ(seteuid(self), 0);
  EXPECT_EQ(read(path("x")), "old");
}

/// Files of this process end at so many bytes while it lives, as on a full disk.
class ShortDisk {
 public:
  explicit ShortDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~ShortDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(WriteFile, says_beforehand_that_a_mounted_file_cannot_be_replaced) {
  const fs::path dir = fs::path(testing::TempDir()) / ("weft_mounted_" + std::to_string(getpid()));
  fs::create_directories(dir);
  const std::string from = dir / "from", to = dir / "to";
  std::ofstream(from) << "old";
  std::ofstream(to) << "old";
  if (mount(from.c_str(), to.c_str(), nullptr, MS_BIND, nullptr) != 0) {
    fs::remove_all(dir);
    GTEST_SKIP() << "this process may not mount";
  }
  EXPECT_TRUE(has(error_of<IoError>([&] { check_writable(to); }), "busy"));
  umount(to.c_str());
  check_writable(to);
  fs::remove_all(dir);
}

TEST_P(Saving, a_full_disk_leaves_the_old_file_and_nothing_else) {
  old_file("x");
  for (const int64_t count : {int64_t{3000}, int64_t{100'000}}) {  // found at commit, and while writing
    const ShortDisk disk(1000);
    EXPECT_TRUE(has(refusal("x", count), "File too large"));
    refusal("fresh", count);
  }
  EXPECT_EQ(read(path("x")), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_P(Saving, a_name_of_the_greatest_length_is_written) {
  const std::string name(255, 'n');
  save(name);
  EXPECT_TRUE(fs::exists(dir_ / name));
  EXPECT_EQ(entries(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Writers, Saving, testing::ValuesIn(kWriters),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Loading, refuses_a_pipe_at_once) {
  const fs::path dir = fs::temp_directory_path() / ("weft_loading_" + std::to_string(getpid()));
  fs::create_directories(dir);
  const std::string pipe = (dir / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::pair<std::string, std::function<void()>> loaders[] = {
      {"load_npy", [&] { load_npy(pipe); }},
      {"load_npz", [&] { load_npz(pipe); }},
      {"load_npz", [&] { load_npz(pipe, std::vector<std::string>{"x"}); }},
      {"load_safetensors", [&] { load_safetensors(pipe); }},
  };
  for (const auto& [name, load] : loaders) {
    auto text = std::async(std::launch::async, [&load = load] { return error_of<IoError>(load); });
    if (text.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
      ADD_FAILURE() << name << " waits for a writer";
      close(open(pipe.c_str(), O_RDWR));  // a writer, which ends the wait
    }
    EXPECT_EQ(text.get(), name + ": " + pipe + ": not a regular file");
  }
  fs::remove_all(dir);
}

TEST(SaveNpz, refuses_a_member_that_would_be_unpacked_elsewhere) {
  for (const char* name : {"../a", "a/../../b", "..", "/a", "c:a", "a\\b"}) {
    const auto save = [&] { save_npz("refused.npz", {{name, ones({1})}}); };
    EXPECT_TRUE(test::has(test::error_of<ValueError>(save), "would be unpacked elsewhere")) << name;
  }
  EXPECT_FALSE(std::filesystem::exists("refused.npz"));
}

TEST(WriteFile, replaces_text_and_says_beforehand_where_it_cannot) {
  const fs::path dir = fs::temp_directory_path() / ("weft_write_file_" + std::to_string(getpid()));
  fs::create_directories(dir);
  const std::string file = (dir / "x").string();
  check_writable(file);
  EXPECT_TRUE(fs::is_empty(dir));
  write_file(file, "one\n");
  write_file(file, "");
  EXPECT_EQ(fs::file_size(file), 0u);
  check_writable(file);
  EXPECT_EQ(error_of<IoError>([&] { check_writable(dir.string()); }),
            "cannot write " + dir.string() + ": Is a directory");
  fs::remove_all(dir);
}

TEST(WriteOutput, goes_into_a_pipe_an_open_file_or_a_device_and_replaces_other_files) {
  const fs::path dir = fs::temp_directory_path() / ("weft_write_output_" + std::to_string(getpid()));
  fs::create_directories(dir);
  const std::string file = (dir / "x").string(), pipe = (dir / "pipe").string(),
                    missing = (dir / "none" / "x").string();
  const auto contents = [](const std::string& p) {
    std::ifstream in(p);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  write_output(file, "long");
  write_output(file, "one\n");
  EXPECT_EQ(contents(file), "one\n");

  std::FILE* open = std::fopen(file.c_str(), "a");
  const std::string link = str("/dev/fd/", fileno(open));
  check_output(link);
  write_output(link, "two\n");
  std::fclose(open);
  EXPECT_EQ(contents(file), "one\ntwo\n");

  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  check_output(pipe);  // waits for no reader, and is no writer that a reader sees come and go
  std::string got;
  std::thread reader([&] { got = contents(pipe); });
  const std::string much(1 << 20, 'm');  // more than a pipe holds
  write_output(pipe, much);
  reader.join();
  EXPECT_EQ(got, much);
  EXPECT_TRUE(fs::is_fifo(pipe));

  check_output("/dev/null");
  write_output("/dev/null", "gone");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_TRUE(has(error_of<IoError>([&] { write_output("/dev/full", "x"); }),
                  "cannot write /dev/full: No space left on device"));
  for (const auto& refuse : {check_output, +[](const std::string& p) { write_output(p, "x"); }}) {
    EXPECT_TRUE(has(error_of<IoError>([&] { refuse(dir.string()); }), "Is a directory"));
    EXPECT_TRUE(has(error_of<IoError>([&] { refuse(missing); }), "No such file"));
  }
  fs::remove_all(dir);
}

}  // namespace
}  // namespace weft
