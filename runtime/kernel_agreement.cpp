// Whether all ranks are about to run the same machine code.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/explain.hpp"
#include "commfuse/engine.hpp"
#include "commfuse/exchange.hpp"
#include "runtime/exchange/bytes.hpp"
#include "runtime/exchange/keys.hpp"
#include "runtime/exchange/socket.hpp"

namespace commfuse {
namespace {

constexpr std::size_t kMaxName = 512;
constexpr std::size_t kShownDigits = 12;

struct Image {
  std::string key;
  std::string cubin_sha256;

  friend bool operator==(const Image&, const Image&) = default;
};

/// By kernel, "NAME for ARCH".
using Images = std::map<std::string, Image>;

std::string title_of(const KernelReport& kernel) { return kernel.spec.name() + " for " + kernel.spec.arch; }

Images images_of(const BuildReport& report) {
  Images images;
  for (const KernelReport& kernel : report.kernels) {
    if (kernel.origin != KernelOrigin::kFailed) images[title_of(kernel)] = {kernel.key, kernel.cubin_sha256};
  }
  return images;
}

Blob to_blob(const Images& images) {
  runtime::ByteWriter writer;
  for (const auto& [title, image] : images) {
    writer.text(title, kMaxName);
    writer.text(image.key, 64);
    writer.text(image.cubin_sha256, 64);
  }
  return writer.take();
}

/// What of a rank's list came over: a list may be too long for one message, and is cut then.
Images from_blob(const Blob& blob) {
  Images images;
  runtime::ByteReader reader(blob);
  while (reader.left() > 0) {
    std::string title = reader.text(kMaxName);
    std::string key = reader.text(64);
    std::string hash = reader.text(64);
    if (!reader.is_good()) break;
    images[std::move(title)] = {std::move(key), std::move(hash)};
  }
  return images;
}

/// The first kernel that is not the same in both.
std::optional<std::string> first_difference(const Images& expected, const Images& found) {
  std::set<std::string> titles;
  for (const auto& [title, image] : expected) titles.insert(title);
  for (const auto& [title, image] : found) titles.insert(title);
  for (const std::string& title : titles) {
    const auto a = expected.find(title);
    const auto b = found.find(title);
    if (a == expected.end() || b == found.end() || a->second != b->second) return title;
  }
  return std::nullopt;
}

std::string shown(const std::string& digits) { return digits.substr(0, kShownDigits); }

class Agreement {
 public:
  Agreement(Exchange& exchange, const BuildReport& report, Timeout timeout)
      : exchange_(exchange), report_(report), timeout_(timeout), own_(to_blob(images_of(report))) {}

  void check() {
    const auto digest = runtime::digest({}, {own_});
    if (!find_differing(exchange_.all_gather(digest, timeout_))) return;
    // Every rank has seen the same digests, so every rank goes on from here.
    const std::size_t sent = std::min(own_.size(), kMaxBlobBytes);
    const std::vector<Blob> lists = exchange_.all_gather(std::span(own_).first(sent), timeout_);
    const Images expected = from_blob(lists[static_cast<std::size_t>(reference_)]);
    const Images found = from_blob(lists[static_cast<std::size_t>(differing_.front())]);
    const auto title = first_difference(expected, found);
    if (!title) fail("its list of kernels differs beyond what can be shown");
    const auto a = expected.find(*title);
    const auto b = found.find(*title);
    if (b == found.end()) fail(fmt::format("it lacks kernel {}, which the others have", *title));
    if (a == expected.end()) fail(fmt::format("it has kernel {}, which the others lack", *title));
    if (a->second.key == b->second.key) {
      fail(fmt::format("its kernel {} has other machine code under the same key {} (SHA-256 {} instead of {})", *title,
                       shown(b->second.key), shown(b->second.cubin_sha256), shown(a->second.cubin_sha256)));
    }
    fail(fmt::format("its kernel {} is another one (key {} instead of {}): {}", *title, shown(b->second.key),
                     shown(a->second.key), compare_signatures(*title)));
  }

 private:
  /// Whether there are any; sets them, and the rank that stands for the others: of the largest group, the lowest.
  bool find_differing(const std::vector<Blob>& digests) {
    std::map<Blob, int> votes;
    for (const Blob& digest : digests) ++votes[digest];
    if (votes.size() == 1) return false;
    const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
    const int most = std::max_element(votes.begin(), votes.end(), fewer)->second;
    while (votes[digests[static_cast<std::size_t>(reference_)]] != most) ++reference_;
    for (std::size_t rank = 0; rank < digests.size(); ++rank) {
      if (digests[rank] != digests[static_cast<std::size_t>(reference_)]) differing_.push_back(static_cast<int>(rank));
    }
    return true;
  }

  /// The two ranks show theirs; all compare.
  std::string compare_signatures(const std::string& title) {
    std::string_view mine;
    if (exchange_.rank() == reference_ || exchange_.rank() == differing_.front()) {
      for (const KernelReport& kernel : report_.kernels) {
        if (title_of(kernel) == title && kernel.signature.size() <= kMaxBlobBytes) mine = kernel.signature;
      }
    }
    const std::vector<Blob> shown = exchange_.all_gather(runtime::as_span(mine), timeout_);
    const auto text = [&](int rank) { return runtime::as_text(shown[static_cast<std::size_t>(rank)]); };
    return fmt::format("{}", fmt::join(cache::differences(text(reference_), text(differing_.front())), "; "));
  }

  [[noreturn]] void fail(const std::string& difference) {
    throw ExchangeError(Code::kMismatch, differing_,
                        fmt::format("the ranks of exchange '{}' do not have the same kernels: {} {}", exchange_.group(),
                                    runtime::rank_list(differing_), differing_.size() == 1 ? "differs" : "differ"),
                        fmt::format("rank {}: {}", differing_.front(), difference),
                        "Start every rank with the same build of commfuse, NVRTC, deployment and cache");
  }

  Exchange& exchange_;
  const BuildReport& report_;
  const Timeout timeout_;
  const Blob own_;
  int reference_ = 0;
  std::vector<int> differing_;
};

}  // namespace

void agree_on_kernels(Exchange& exchange, const BuildReport& report, std::chrono::milliseconds timeout) {
  Agreement(exchange, report, timeout).check();
}

}  // namespace commfuse
