// What a compiled kernel was made from. Its canonical JSON is stored beside the cubin; the hash of that JSON is the
// key.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace commfuse::cache {

/// Everything that decides the bytes of a cubin, and nothing else: no path, host, time or driver version. Documented by
/// schemas/signature.schema.json.
///
/// A change of the meaning or the set of these fields must raise kSchema, which changes every key: old entries are then
/// never found, and eviction removes them.
struct Signature {
  static constexpr int kSchema = 1;

  int schema = kSchema;
  std::string kernel;                                 ///< readable name: letters, digits, `_`; at most 255
  std::string spec_json;                              ///< the KernelSpec as a canonical JSON object
  std::string source_sha256;                          ///< of the generated translation unit
  std::map<std::string, std::string> headers_sha256;  ///< include name -> SHA-256, of every embedded header
  std::vector<std::string> options;                   ///< of the compiler, in order
  std::string nvrtc_build;                            ///< "13.0.88 CL-36424714"
  std::string arch;                                   ///< "sm_90a"

  [[nodiscard]] bool operator==(const Signature&) const = default;

  /// Canonical JSON: sorted keys, no white space, every field; different signatures have different texts. Throws
  /// Error(kInvalidArgument) for a signature that cannot be keyed safely: a field that breaks its rule above, or an
  /// option that makes the compiler read or write files (`-I` and the like), whose content the key would not cover.
  [[nodiscard]] std::string to_json() const;

  /// SHA-256 of to_json(): 64 lower-case hexadecimal digits. Throws as to_json does.
  [[nodiscard]] std::string key() const;

  /// Reads what to_json wrote, and nothing else: another order of keys, white space, an unknown or repeated key, or a
  /// value out of bounds throws Error(kInvalidInput). `json` is untrusted; more than 1 MiB is refused.
  [[nodiscard]] static Signature parse(std::string_view json);
};

}  // namespace commfuse::cache
