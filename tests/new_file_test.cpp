// SPDX-License-Identifier: Apache-2.0
#include "checkpoints/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process.h"

namespace zerobox {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Whether the file system has files without a name, or is used as if it had none.
class NewFileTest : public testing::TestWithParam<bool> {
 protected:
  bool nameless() const { return GetParam(); }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  bool HasNameless() const {
    const int fd = open(folder_.path().c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
  }

  const TemporaryFolder folder_;
};

TEST_P(NewFileTest, TakesItsNameAndReplacesAFileWhenItIsFinished) {
  WriteFile(Path("page"), "old");
  NewFile file;
  ASSERT_EQ(file.Open(Path("page"), nameless()), 0);
  ASSERT_EQ(file.Write("new"), 0);
  EXPECT_EQ(ReadFile(Path("page")), "old");
  EXPECT_EQ(file.Finish(), 0);
  EXPECT_EQ(file.fd(), -1);
  EXPECT_EQ(ReadFile(Path("page")), "new");
  EXPECT_THAT(Names(), ElementsAre("page"));
}

TEST_P(NewFileTest, HasTheModeThatTheUmaskSays) {
  const mode_t before = umask(0027);
  NewFile file;
  EXPECT_EQ(file.Open(Path("page"), nameless()), 0);
  EXPECT_EQ(file.Finish(), 0);
  umask(before);
  EXPECT_EQ(fs::status(Path("page")).permissions(), static_cast<fs::perms>(0640));
}

TEST_P(NewFileTest, IsGoneWhereItIsNotFinished) {
  {
    NewFile file;
    ASSERT_EQ(file.Open(Path("page"), nameless()), 0);
    ASSERT_EQ(file.Write("new"), 0);
  }
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_P(NewFileTest, IsGoneWhereItCannotHaveItsName) {
  fs::create_directory(Path("page"));
  {
    NewFile file;
    ASSERT_EQ(file.Open(Path("page"), nameless()), 0);
    EXPECT_EQ(file.Finish(), EISDIR);
  }
  EXPECT_THAT(Names(), ElementsAre("page"));
  NewFile absent, long_name;
  EXPECT_EQ(absent.Open(Path("absent/page"), nameless()), ENOENT);
  EXPECT_EQ(long_name.Open(Path(std::string(300, 'x')), nameless()), ENAMETOOLONG);
}

TEST_P(NewFileTest, StaysOnlyUnderAnotherNameWhereTheProcessEndsAtOnce) {
  if (nameless() && !HasNameless()) GTEST_SKIP() << "this file system has no files without a name";
  const pid_t child = fork();
  if (child == 0) {
    NewFile file;
    const bool written = file.Open(Path("page"), nameless()) == 0 && file.Write("new") == 0;
    _exit(written ? 130 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(WEXITSTATUS(status), 130);
  if (nameless()) {
    EXPECT_THAT(Names(), IsEmpty());
  } else {
    EXPECT_THAT(Names(), ElementsAre(StartsWith("page.tmp.")));
  }
}

INSTANTIATE_TEST_SUITE_P(FileSystems, NewFileTest, testing::Bool(), [](const auto& info) {
  return info.param ? "WithNamelessFiles" : "Without";
});

}  // namespace
}  // namespace zerobox
