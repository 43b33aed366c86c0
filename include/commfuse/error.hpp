// Errors of set-up (exceptions) and of launches (status codes).
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace commfuse {

/// What kind of thing went wrong. The same codes are used by `Error` (set-up), by launches (which return them and never
/// throw) and by the C interface (as integers).
enum class Code : int {
  kOk = 0,
  kInvalidArgument = 1,  ///< an argument of this call: wrong value, missing, misaligned, too small, overlapping
  kInvalidInput = 2,     ///< a file or message from outside that does not follow its format
  kUnsupported = 3,      ///< correct, but not something this build, device or toolchain can do
  kNotFound = 4,         ///< a file, entry, library or symbol that is not there
  kNotWarmed = 5,        ///< a kernel that was not loaded before it was needed
  kCapacity = 6,         ///< the workspace is too small for this call
  kOutOfMemory = 7,      ///< host or device memory
  kDriver = 8,           ///< a CUDA driver call failed
  kCompiler = 9,         ///< NVRTC refused the program
  kIo = 10,              ///< a file-system or socket call failed
  kTimeout = 11,         ///< a peer did not answer within the deadline
  kAborted = 12,         ///< somebody called abort() on the group
  kMismatch = 13,        ///< ranks disagree (shape, type, kernel, version)
  kBusy = 14,            ///< used from two streams at once, or held by somebody else
  kStale = 15,           ///< made for an earlier generation of the workspace (after grow or suspend)
  kInternal = 16,        ///< a fault of commfuse itself
};

/// The code's name without its `k`, for messages and JSON ("InvalidArgument").
[[nodiscard]] std::string_view to_string(Code code) noexcept;

/// The answer of a launch: made of static text only, so that a launch allocates nothing.
struct [[nodiscard]] Status {
  Code code = Code::kOk;
  std::string_view subject;  ///< the argument or object ("residual_in"); empty for kOk
  std::string_view problem;  ///< what is wrong with it ("is missing")

  [[nodiscard]] bool ok() const noexcept { return code == Code::kOk; }
  /// A sentence for people: code, subject and problem. Allocates.
  [[nodiscard]] std::string text() const;
};

/// An error of set-up. `what()` is one readable text made of all parts; the parts are kept for callers that show or
/// translate them.
class Error : public std::runtime_error {
 public:
  /// @param what    what failed and on which object ("cannot read deployment file 'a.json'")
  /// @param cause   why ("line 3: unknown key 'hiden_size' at /hiden_size"); may be empty
  /// @param remedy  what the reader can do about it; may be empty
  Error(Code code, std::string what, std::string cause = {}, std::string remedy = {});

  [[nodiscard]] Code code() const noexcept { return code_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  [[nodiscard]] const std::string& cause() const noexcept { return cause_; }
  [[nodiscard]] const std::string& remedy() const noexcept { return remedy_; }

 private:
  Code code_;
  std::string message_;
  std::string cause_;
  std::string remedy_;
};

}  // namespace commfuse
