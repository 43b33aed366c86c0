// Loaded kernels by specification.
#pragma once

#include <mutex>
#include <shared_mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/loader.hpp"

namespace commfuse::runtime {

/// Grows only, so that what it has given out stays where it is. All functions may be called from any thread.
class KernelTable {
 public:
  /// Null if there is none.
  [[nodiscard]] const KernelImage* find(const KernelSpec& spec) const noexcept {
    const std::shared_lock lock(mutex_);
    const auto image = images_.find(spec);
    return image == images_.end() ? nullptr : &image->second;
  }

  /// One for each of `specs`, null where there is none; empty if there is none at all.
  [[nodiscard]] std::vector<const KernelImage*> find_any(std::span<const KernelSpec> specs) const {
    std::vector<const KernelImage*> found;
    bool any = false;
    for (const KernelSpec& spec : specs) {
      found.push_back(find(spec));
      any |= found.back() != nullptr;
    }
    if (!any) found.clear();
    return found;
  }

  /// Keeps the one that is there already.
  void add(KernelImage image) {
    const std::scoped_lock lock(mutex_);
    const KernelSpec spec = image.spec;
    images_.try_emplace(spec, std::move(image));
  }

 private:
  struct Hash {
    /// Of what tells the kernels of one device apart; the fields left out rarely do.
    std::size_t operator()(const KernelSpec& spec) const noexcept {
      std::size_t hash = 0;
      for (const int field :
           {static_cast<int>(spec.op), static_cast<int>(spec.pattern), static_cast<int>(spec.algorithm),
            static_cast<int>(spec.dtype), static_cast<int>(spec.gamma_dtype), static_cast<int>(spec.quant_layout),
            spec.world_size, spec.hidden_size, spec.threads, spec.cluster, static_cast<int>(spec.fp32_accumulate)}) {
        hash = (hash ^ static_cast<std::size_t>(field)) * 0x9e3779b97f4a7c15U;
        hash ^= hash >> 29;
      }
      return hash;
    }
  };

  mutable std::shared_mutex mutex_;
  std::unordered_map<KernelSpec, KernelImage, Hash> images_;
};

}  // namespace commfuse::runtime
