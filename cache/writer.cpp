#include "cache/writer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "cache/entry.hpp"
#include "cache/trust.hpp"

namespace commfuse::cache {
namespace {

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::system_error(error, std::generic_category(), what);
}

}  // namespace

void create_cache_directory(const std::filesystem::path& path) {
  if (!path.parent_path().empty() && path.parent_path() != path) {
    std::error_code ignored;  // mkdir below tells what matters
    std::filesystem::create_directories(path.parent_path(), ignored);
  }
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) fail("create directory", errno);
  reach_step("directory");
}

void write_entry(const FileDescriptor& directory, std::string_view key, std::string_view cubin,
                 const std::string& metadata_json) {
  struct stat status;
  if (::fstat(directory.get(), &status) != 0) fail("stat directory", errno);
  const unsigned writers = is_group_shared(status) ? 0770u | S_ISGID : 0700u;
  const unsigned directory_mode = (status.st_mode & 0755u) | (status.st_mode & writers);
  const unsigned file_mode = directory_mode & 0666u;

  const std::string sub(key.substr(0, 2));
  if (::mkdirat(directory.get(), sub.c_str(), directory_mode & 0777u) == 0) {
    // The umask must not make a shared cache private.
    (void)::fchmodat(directory.get(), sub.c_str(), directory_mode, 0);
    (void)::fsync(directory.get());
  } else if (errno != EEXIST) {
    fail("create directory " + sub, errno);
  }
  const FileDescriptor sub_directory(
      ::openat(directory.get(), sub.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!sub_directory) fail("open directory " + sub, errno);

  const std::string cubin_file = cubin_name(key).substr(3);
  const std::string json_file = metadata_name(key).substr(3);
  AtomicFile cubin_out(sub_directory.get(), cubin_file, file_mode);
  cubin_out.write(cubin);
  cubin_out.commit();
  try {
    AtomicFile json_out(sub_directory.get(), json_file, file_mode);
    json_out.write(metadata_json);
    json_out.commit();
  } catch (...) {
    // A cubin without metadata only takes space, on a disk that may be full. If metadata is there, somebody else's
    // entry is using the file.
    if (::faccessat(sub_directory.get(), json_file.c_str(), F_OK, 0) != 0) {
      ::unlinkat(sub_directory.get(), cubin_file.c_str(), 0);
    }
    throw;
  }
  (void)::fsync(sub_directory.get());  // some file systems cannot; the entry is complete for every reader already
  reach_step("dir-synced");
}

}  // namespace commfuse::cache
