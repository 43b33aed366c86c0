// What the commands that remove from a cache share.
#pragma once

namespace commfuse::cache {
class Store;
struct GcReport;
}  // namespace commfuse::cache

namespace commfuse::cli {

/// Prints what a collection came to.
void report_collection(const cache::Store& store, const cache::GcReport& report, bool dry_run, bool as_json);

}  // namespace commfuse::cli
