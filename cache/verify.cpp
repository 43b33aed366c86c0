// Whether a cache holds what a manifest lists.
#include <optional>

#include "cache/explain.hpp"
#include "cache/manifest.hpp"
#include "cache/signature.hpp"

namespace commfuse::cache {

Verification verify(const Store& store, const Manifest& manifest) {
  Verification result;
  result.total = manifest.kernels.size();
  std::optional<std::vector<EntryInfo>> entries;  // listed only if something is missing
  for (const Wanted& kernel : manifest.kernels) {
    const Lookup found = store.peek(kernel.key, kernel.signature_json);
    if (found) continue;
    MissingKernel missing;
    missing.kernel = kernel;
    missing.name = Signature::parse(kernel.signature_json).kernel;
    missing.reason = found.reason;
    missing.detail = found.detail;
    if (found.reason == Miss::kAbsent) {
      if (!entries) entries = store.list();
      missing.explanation = explain(*entries, kernel.signature_json).summary;
    }
    result.missing.push_back(std::move(missing));
  }
  return result;
}

}  // namespace commfuse::cache
