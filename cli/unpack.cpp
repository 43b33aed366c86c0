// commfuse unpack: the kernels of a pack into the cache.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cache/ed25519.hpp"
#include "cache/pack.hpp"
#include "cache/store.hpp"
#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/output.hpp"
#include "cli/units.hpp"

namespace commfuse::cli {
namespace {

struct Arguments {
  std::filesystem::path file;
  std::vector<std::filesystem::path> trust;
  std::filesystem::path cache_dir;
};

int unpack_file(const Arguments& arguments, bool as_json) {
  const auto store = open_store(arguments.cache_dir);
  std::unique_ptr<cache::Pack> pack;
  cache::UnpackReport report;
  try {
    std::vector<std::string> keys;
    for (const auto& file : arguments.trust) keys.push_back(cache::read_public_key(file));
    pack = cache::Pack::open(arguments.file, keys);
    report = cache::unpack(*pack, *store);
  } catch (const Error& error) {
    throw UsageError(error);
  }
  if (as_json) {
    print_document({{"file", arguments.file.string()},
                    {"cache_dir", store->directories().writable.string()},
                    {"signer", pack->signer()},
                    {"kernels", pack->entries().size()},
                    {"stored", report.stored},
                    {"kept", report.kept},
                    {"failures", report.failures}});
  } else {
    std::string text;
    for (const std::string& failure : report.failures) text += failure + '\n';
    text += fmt::format("{}: {} stored, {} were there, {} failed; in {}\n",
                        count_text(static_cast<std::int64_t>(pack->entries().size()), "kernel"), report.stored,
                        report.kept, report.failures.size(), store->directories().writable.string());
    print(text);
  }
  return report.failures.empty() ? kDone : kFailed;
}

}  // namespace

void add_unpack(CLI::App& app, Session& session) {
  CLI::App* command = add_command(app, session, "unpack", "Verify a pack whole, then put its kernels into the cache",
                                  "commfuse unpack llama.pack --trust release.key.pub");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("FILE", arguments->file, "Pack")->required();
  command->add_option("--trust", arguments->trust, "Files with public keys; the pack must be signed by one of them");
  command->add_option("--cache-dir", arguments->cache_dir, "Cache folder, else COMMFUSE_CACHE_DIR, else the user's");
  command->callback(
      [arguments, &session] { session.run = [arguments, &session] { return unpack_file(*arguments, session.json); }; });
}

}  // namespace commfuse::cli
