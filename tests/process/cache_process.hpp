// Children of a test: run a function in a process of its own, with another user, other limits or other mounts.
#pragma once

#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

namespace commfuse::cache::testing {

/// A child that runs `work` and ends without running the parent's destructors.
class Child {
 public:
  explicit Child(const std::function<std::string()>& work) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ < 0) std::abort();
    if (pid_ == 0) {
      ::close(ends[0]);
      std::string result;
      try {
        result = work();
      } catch (const std::exception& e) {
        result = std::string("exception: ") + e.what();
      }
      (void)!::write(ends[1], result.data(), result.size());
      ::_exit(0);
    }
    ::close(ends[1]);
    pipe_ = ends[0];
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)), pipe_(std::exchange(other.pipe_, -1)) {}
  ~Child() {
    if (pid_ > 0) (void)result();
  }

  [[nodiscard]] pid_t pid() const { return pid_; }

  /// What `work` returned (by convention "" if all was well), or "signal N" if it was killed.
  [[nodiscard]] std::string result() {
    std::string text;
    char buffer[4096];
    ssize_t n;
    while ((n = ::read(pipe_, buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<std::size_t>(n));
    ::close(pipe_);
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status)) : text;
  }

 private:
  pid_t pid_;
  int pipe_;
};

inline std::string run_in_child(const std::function<std::string()>& work) { return Child(work).result(); }

/// In a child: from here its mounts are its own. False where the system allows that neither to it nor in a user
/// namespace.
inline bool enter_private_mounts() {
  if (::unshare(CLONE_NEWNS) != 0) {
    const uid_t uid = ::geteuid();
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << "0 " << uid << " 1";
  }
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

inline bool private_mounts_work() {
  return run_in_child([] { return std::string(enter_private_mounts() ? "yes" : "no"); }) == "yes";
}

/// In a child of root: become this user, for good, in this group alone.
inline bool become(uid_t uid, gid_t gid) {
  return ::setgroups(0, nullptr) == 0 && ::setresgid(gid, gid, gid) == 0 && ::setresuid(uid, uid, uid) == 0;
}

}  // namespace commfuse::cache::testing
