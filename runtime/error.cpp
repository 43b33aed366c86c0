#include "commfuse/error.hpp"

#include <utility>

namespace commfuse {
namespace {

std::string joined(const std::string& what, const std::string& cause, const std::string& remedy) {
  std::string text = what;
  if (!cause.empty()) text += ": " + cause;
  if (!remedy.empty()) text += (text.ends_with('\n') ? "" : ". ") + remedy;
  return text;
}

}  // namespace

std::string_view to_string(Code code) noexcept {
  switch (code) {
    case Code::kOk:
      return "Ok";
    case Code::kInvalidArgument:
      return "InvalidArgument";
    case Code::kInvalidInput:
      return "InvalidInput";
    case Code::kUnsupported:
      return "Unsupported";
    case Code::kNotFound:
      return "NotFound";
    case Code::kNotWarmed:
      return "NotWarmed";
    case Code::kCapacity:
      return "Capacity";
    case Code::kOutOfMemory:
      return "OutOfMemory";
    case Code::kDriver:
      return "Driver";
    case Code::kCompiler:
      return "Compiler";
    case Code::kIo:
      return "Io";
    case Code::kTimeout:
      return "Timeout";
    case Code::kAborted:
      return "Aborted";
    case Code::kMismatch:
      return "Mismatch";
    case Code::kBusy:
      return "Busy";
    case Code::kStale:
      return "Stale";
    case Code::kInternal:
      return "Internal";
  }
  return "Unknown";
}

std::string Status::text() const {
  std::string text{to_string(code)};
  if (!subject.empty()) text.append(": ").append(subject).append(" ").append(problem);
  return text;
}

Error::Error(Code code, std::string what, std::string cause, std::string remedy)
    : std::runtime_error(joined(what, cause, remedy)),
      code_(code),
      message_(std::move(what)),
      cause_(std::move(cause)),
      remedy_(std::move(remedy)) {}

}  // namespace commfuse
