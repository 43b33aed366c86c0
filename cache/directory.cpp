#include "cache/directory.hpp"

#include <pwd.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

namespace commfuse::cache {
namespace {

namespace fs = std::filesystem;

std::optional<fs::path> home_of_effective_user() {
  std::vector<char> buffer(16384);
  passwd entry;
  passwd* found = nullptr;
  if (::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr ||
      entry.pw_dir == nullptr || entry.pw_dir[0] == '\0') {
    return std::nullopt;
  }
  return fs::path(entry.pw_dir);
}

std::vector<fs::path> split_paths(const std::string& list, const std::string& variable,
                                  std::vector<std::string>& warnings) {
  std::vector<fs::path> paths;
  std::string_view rest = list;
  while (!rest.empty()) {
    const std::size_t colon = rest.find(':');
    const std::string item(rest.substr(0, colon));
    rest = colon == std::string_view::npos ? std::string_view{} : rest.substr(colon + 1);
    if (item.empty()) continue;
    if (item[0] != '/') {
      warnings.push_back(variable + " names '" + item +
                         "', which is relative and therefore ignored; use an absolute path");
    } else {
      paths.push_back(fs::path(item).lexically_normal());
    }
  }
  return paths;
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit.empty() || unit == "B") return number;
  const std::size_t power = std::string_view("KMGT").find(unit.front());
  if (power == std::string_view::npos) return std::nullopt;
  if (unit.size() > 1 && unit.substr(1) != "iB" && unit.substr(1) != "B") return std::nullopt;
  const unsigned shift = 10 * (static_cast<unsigned>(power) + 1);
  if (number > (std::numeric_limits<std::uint64_t>::max() >> shift)) return std::nullopt;
  return number << shift;
}

void find_writable(const Environment& environment, Directories& result) {
  const auto value = [&](const char* name) { return environment.variable(name).value_or(""); };
  const auto choose = [&](const fs::path& path, const char* by) {
    result.writable = path.lexically_normal();
    result.chosen_by = by;
  };
  if (const std::string dir = value("COMMFUSE_CACHE_DIR"); !dir.empty()) {
    if (dir[0] == '/') return choose(dir, "COMMFUSE_CACHE_DIR");
    result.warnings.push_back("kernels are not cached: COMMFUSE_CACHE_DIR is '" + dir +
                              "', which depends on the current directory. Set COMMFUSE_CACHE_DIR to an absolute path");
    return;
  }
  if (const std::string xdg = value("XDG_CACHE_HOME"); xdg.starts_with('/')) {
    return choose(fs::path(xdg) / "commfuse", "XDG_CACHE_HOME");
  }
  if (const std::string home = value("HOME"); home.starts_with('/')) {
    return choose(fs::path(home) / ".cache" / "commfuse", "HOME");
  }
  if (const auto home = environment.passwd_home(); home && home->is_absolute()) {
    return choose(*home / ".cache" / "commfuse", "the user database");
  }
  result.warnings.push_back(
      "kernels are not cached: COMMFUSE_CACHE_DIR, XDG_CACHE_HOME and HOME are not set to absolute paths and the user "
      "has no home directory. Set COMMFUSE_CACHE_DIR to a directory that can be written");
}

}  // namespace

Environment Environment::of_process() {
  return {[](const std::string& name) -> std::optional<std::string> {
            const char* value = std::getenv(name.c_str());
            return value == nullptr ? std::nullopt : std::optional<std::string>(value);
          },
          home_of_effective_user};
}

Directories find_directories(const Environment& environment, const fs::path& chosen) {
  Directories result;
  if (chosen.empty()) {
    find_writable(environment, result);
  } else {
    result.writable = fs::absolute(chosen).lexically_normal();
    result.chosen_by = "the caller";
  }
  if (const auto list = environment.variable("COMMFUSE_CACHE_READONLY")) {
    result.readonly = split_paths(*list, "COMMFUSE_CACHE_READONLY", result.warnings);
  }
  if (const auto list = environment.variable("COMMFUSE_CACHE_TRUST")) {
    result.trusted = split_paths(*list, "COMMFUSE_CACHE_TRUST", result.warnings);
  }
  if (const auto bound = environment.variable("COMMFUSE_CACHE_MAX_BYTES"); bound && !bound->empty()) {
    if (const auto bytes = parse_size(*bound)) {
      result.max_bytes = *bytes;
    } else {
      result.warnings.push_back("COMMFUSE_CACHE_MAX_BYTES is '" + *bound +
                                "', which is no size and therefore ignored; use a number of bytes, 500MiB or 2GiB");
    }
  }
  if (const auto runtime = environment.variable("XDG_RUNTIME_DIR"); runtime && runtime->starts_with('/')) {
    result.runtime = *runtime;
  }
  return result;
}

}  // namespace commfuse::cache
