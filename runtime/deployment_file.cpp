#include "runtime/deployment_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "commfuse/error.hpp"
#include "runtime/deployment_json.hpp"

namespace commfuse::runtime {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int value) noexcept : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  [[nodiscard]] int get() const noexcept { return value_; }

 private:
  int value_;
};

[[noreturn]] void fail(const std::filesystem::path& file, int error) {
  const bool missing = error == ENOENT || error == ENOTDIR;
  throw Error(missing ? Code::kNotFound : Code::kIo,
              fmt::format("cannot read deployment file {}", json_quoted(file.string())),
              std::generic_category().message(error), missing ? "check the path" : "");
}

[[noreturn]] void refuse(const std::filesystem::path& file, std::string cause) {
  throw Error(Code::kInvalidInput, fmt::format("cannot read deployment file {}", json_quoted(file.string())),
              std::move(cause));
}

}  // namespace

std::string read_deployment_file(const std::filesystem::path& file) {
  // O_NONBLOCK: opening a pipe that nobody writes to must not wait. The checks are on the open file, so it cannot be
  // exchanged between check and use.
  const Descriptor descriptor(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (descriptor.get() < 0) fail(file, errno);
  struct stat status = {};
  if (::fstat(descriptor.get(), &status) != 0) fail(file, errno);
  if (!S_ISREG(status.st_mode)) {
    refuse(file, S_ISDIR(status.st_mode) ? "it is a directory; allowed: a regular file"
                                         : "it is a pipe, socket or device; allowed: a regular file");
  }
  if (status.st_size > static_cast<off_t>(kMaxJsonBytes)) {
    refuse(file, fmt::format("found {} bytes; allowed: at most {}", status.st_size, kMaxJsonBytes));
  }
  // The file may grow while it is read, and files of /proc have no size, so the limit counts what arrives.
  std::string text(kMaxJsonBytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::read(descriptor.get(), text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(file, errno);
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  if (size > kMaxJsonBytes) refuse(file, fmt::format("found more than {} bytes; allowed: at most that", kMaxJsonBytes));
  text.resize(size);
  return text;
}

}  // namespace commfuse::runtime
