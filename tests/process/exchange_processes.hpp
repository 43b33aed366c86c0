// Starting ranks as processes of their own and hearing what they say.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace commfuse::exchange_testing {

using Clock = std::chrono::steady_clock;

/// A running program; killed with its owner.
class Process {
 public:
  Process(const std::string& program, const std::vector<std::string>& arguments,
          const std::map<std::string, std::string>& environment = {});
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  ~Process();

  [[nodiscard]] int pid() const { return pid_; }
  void send_signal(int number) const;
  void write_line() const;
  /// All that it prints until it has printed this line; fails the test after 60 s.
  void wait_for_line(const std::string& line);
  /// All that it prints until its end; kills it after 60 s, which shows as "killed".
  std::string finish();
  /// How long it ran, from its start to the end of its output.
  [[nodiscard]] std::chrono::milliseconds lifetime() const { return lifetime_; }

 private:
  bool read_some(Clock::time_point deadline);

  int pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  std::string text_;
  Clock::time_point started_;
  std::chrono::milliseconds lifetime_{0};
};

/// The ranks 0 to size-1 of a group, each with the common arguments and its own rank before the steps.
struct Ranks {
  std::vector<std::string> common;
  int size = 2;
  [[nodiscard]] Process start(int rank, const std::vector<std::string>& steps) const;
  /// All with the same steps; what each printed.
  [[nodiscard]] std::vector<std::string> run(const std::vector<std::string>& steps) const;
};

/// A fresh folder, removed with its owner.
class Folder {
 public:
  Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder();
  [[nodiscard]] std::filesystem::path path() const { return path_; }
  [[nodiscard]] std::size_t count() const;

 private:
  std::filesystem::path path_;
};

/// "127.0.0.1:PORT" with a port that was free a moment ago.
[[nodiscard]] std::string free_address();
[[nodiscard]] std::size_t open_descriptors();

}  // namespace commfuse::exchange_testing
