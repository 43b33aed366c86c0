// The format of an entry: its two files and what is in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace commfuse::cache {

// An entry of the cache, in a directory or a pack. `key` is the SHA-256 of the signature, `ab` its first two digits.
//
//   ab/<key>.cubin   the kernel, a plain ELF file that NVIDIA's tools read
//   ab/<key>.json    written last: an entry without it does not exist
//
// The JSON is one object, canonical (sorted keys, no white space), with exactly these members:
//
//   check       string    SHA-256 of this text without this member, so that a flipped bit in any member shows
//   commfuse    string    version that wrote it; informs
//   created     integer   seconds since 1970; informs
//   cubin       object    {"sha256": 64 hexadecimal digits, "size": bytes}
//   facts       object    informs; by convention
//                           log        string   of the compiler
//                           phases_ms  object   milliseconds by phase ("front_end", "nvvm", "ptxas" ...)
//                           resources  object   numbers: registers, shared_bytes, stack_bytes, instructions ...
//                           toolchain  object   what compiled it and where, the compiler's environment variables
//                           source     string   the generated translation unit
//   schema      integer   kEntrySchema
//   signature   object    what was compiled (signature.hpp)
//
// Any change of this grammar raises kEntrySchema. An entry of another schema is a miss of kind kMalformed and is
// replaced; keys are not affected, because the signature has a schema of its own.
inline constexpr int kEntrySchema = 1;

inline constexpr std::size_t kMaxMetadataBytes = std::size_t{8} << 20;
inline constexpr std::size_t kMaxFactsBytes = std::size_t{4} << 20;
inline constexpr std::size_t kMaxCubinBytes = std::size_t{256} << 20;

/// The JSON of an entry, read.
struct Metadata {
  std::string version;       ///< of commfuse
  std::int64_t created = 0;  ///< seconds since 1970
  std::string cubin_sha256;
  std::uint64_t cubin_bytes = 0;
  std::string facts_json;      ///< canonical
  std::string signature_json;  ///< canonical; equals Signature::to_json() of what was compiled
  std::string kernel;          ///< the signature's, for listings; set by parse, ignored by to_json
  std::string arch;            ///< likewise

  /// Throws Error(kInvalidArgument) if facts or signature are not JSON objects.
  [[nodiscard]] std::string to_json() const;
  /// Reads untrusted text. Throws Error(kInvalidInput).
  [[nodiscard]] static Metadata parse(std::string_view json);
};

/// "ab/<key>.json" and "ab/<key>.cubin".
[[nodiscard]] std::string metadata_name(std::string_view key);
[[nodiscard]] std::string cubin_name(std::string_view key);

}  // namespace commfuse::cache
