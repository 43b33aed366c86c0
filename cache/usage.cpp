#include "cache/usage.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cache/file.hpp"
#include "cache/locks.hpp"

namespace commfuse::cache {
namespace {

using nlohmann::json;

// Lines that are being summed up. One that lies there was left by a process that died over it.
constexpr auto kFoldedFile = "usage.summed";
constexpr std::size_t kMaxRead = 16 * kMaxUsageBytes;

std::uint64_t count_at(const json& object, const char* name) {
  const auto member = object.find(name);
  return member != object.end() && member->is_number_unsigned() ? member->get<std::uint64_t>() : 0;
}

void append(int directory, unsigned mode, const std::string& line) {
  const FileDescriptor file(
      ::openat(directory, kUsageFile, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, mode));
  if (!file) return;
  // The umask must not keep a group out; fails for the file of another user, which has the mode already.
  struct stat status {};
  if (::fstat(file.get(), &status) == 0 && (status.st_mode & 0777u) != mode) (void)::fchmod(file.get(), mode);
  const std::string text = line + "\n";
  (void)!::write(file.get(), text.data(), text.size());
}

Usage read_lines(int directory, const char* name) {
  const FileRead read = read_file(directory, name, kMaxRead);
  return read.error == 0 ? Usage::parse_lines(read.bytes) : Usage{};
}

void sum_up(int directory, unsigned mode) {
  const auto take_over = [&] {
    const Usage sum = read_lines(directory, kFoldedFile);
    if (!sum.empty()) append(directory, mode, sum.to_json());
    return ::unlinkat(directory, kFoldedFile, 0) == 0;
  };
  if (::faccessat(directory, kFoldedFile, F_OK, 0) == 0 && !take_over()) return;
  // Whoever appends meanwhile begins a new file; a line that is being written this moment may be lost.
  if (::renameat(directory, kUsageFile, directory, kFoldedFile) == 0) (void)take_over();
}

}  // namespace

void Usage::add(const Usage& other) {
  hits += other.hits;
  compiled += other.compiled;
  failed += other.failed;
  for (const auto& [reason, count] : other.misses) misses[reason] += count;
  for (const auto& [phase, milliseconds] : other.compile_ms) compile_ms[phase] += milliseconds;
}

std::string Usage::to_json() const {
  json line = json::object();
  if (hits != 0) line["hits"] = hits;
  if (compiled != 0) line["compiled"] = compiled;
  if (failed != 0) line["failed"] = failed;
  if (!misses.empty()) line["misses"] = misses;
  if (!compile_ms.empty()) line["compile_ms"] = compile_ms;
  return line.dump(-1, ' ', true, json::error_handler_t::replace);
}

Usage Usage::parse_lines(std::string_view text) {
  Usage sum;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const json object = json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) continue;
    Usage one;
    one.hits = count_at(object, "hits");
    one.compiled = count_at(object, "compiled");
    one.failed = count_at(object, "failed");
    if (const auto misses = object.find("misses"); misses != object.end() && misses->is_object()) {
      for (const auto& [reason, count] : misses->items()) {
        if (count.is_number_unsigned()) one.misses[reason] = count.get<std::uint64_t>();
      }
    }
    if (const auto times = object.find("compile_ms"); times != object.end() && times->is_object()) {
      for (const auto& [phase, time] : times->items()) {
        if (time.is_number() && std::isfinite(time.get<double>()) && time.get<double>() >= 0) {
          one.compile_ms[phase] = time.get<double>();
        }
      }
    }
    sum.add(one);
  }
  return sum;
}

void record_usage(int directory, unsigned mode, const Locks& locks, const Usage& usage) {
  if (usage.empty()) return;
  append(directory, mode, usage.to_json());
  struct stat status {};
  if (::fstatat(directory, kUsageFile, &status, AT_SYMLINK_NOFOLLOW) != 0) return;
  if (static_cast<std::uint64_t>(status.st_size) <= kMaxUsageBytes) return;
  // Without a lock it waits for somebody who gets one.
  const LockAttempt lock = locks.try_lock("usage");
  if (lock.result == LockAttempt::Result::kHeld) sum_up(directory, mode);
}

Usage read_usage(int directory) {
  Usage sum = read_lines(directory, kUsageFile);
  sum.add(read_lines(directory, kFoldedFile));
  return sum;
}

}  // namespace commfuse::cache
