// commfuse pack: chosen kernels of the cache in one file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cache/ed25519.hpp"
#include "cache/manifest.hpp"
#include "cache/pack.hpp"
#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/output.hpp"
#include "cli/units.hpp"

namespace commfuse::cli {
namespace {

using nlohmann::json;

struct Arguments {
  std::filesystem::path file;
  std::vector<std::filesystem::path> manifests;
  std::filesystem::path sign;
  bool new_key = false;
  std::filesystem::path cache_dir;
};

std::string secret_for(const Arguments& arguments) {
  if (arguments.sign.empty()) return {};
  if (arguments.new_key) cache::write_key_pair(cache::make_key_pair(), arguments.sign);
  try {
    return cache::read_secret_key(arguments.sign);
  } catch (const Error& error) {
    throw UsageError(error);
  }
}

int pack_cache(const Arguments& arguments, bool as_json) {
  cache::PackOptions options;
  for (const auto& file : arguments.manifests) {
    for (const cache::Wanted& kernel : load_manifest(file).kernels) options.keys.push_back(kernel.key);
  }
  if (!arguments.manifests.empty() && options.keys.empty()) {
    throw UsageError(Error(Code::kInvalidArgument, "the manifests list no kernel"));
  }
  options.secret_key = secret_for(arguments);
  const auto store = open_store(arguments.cache_dir);
  const std::vector<cache::PackEntry> entries = cache::write_pack(*store, arguments.file, options);
  const std::uint64_t bytes = std::filesystem::file_size(arguments.file);
  const std::string signer = options.secret_key.empty() ? std::string() : cache::public_key_of(options.secret_key);
  if (as_json) {
    json document = {{"file", arguments.file.string()},
                     {"bytes", bytes},
                     {"kernels", entries.size()},
                     {"signer", signer},
                     {"entries", json::array()}};
    for (const cache::PackEntry& entry : entries) document["entries"].push_back(pack_entry_document(entry));
    print_document(document);
  } else {
    print(fmt::format("{}, {} in {}{}\n", count_text(static_cast<std::int64_t>(entries.size()), "kernel"),
                      bytes_text(bytes), arguments.file.string(),
                      signer.empty() ? ", not signed" : ", signed by " + signer));
  }
  return kDone;
}

}  // namespace

void add_pack(CLI::App& app, Session& session) {
  CLI::App* command = add_command(app, session, "pack", "Write kernels of the cache into one file",
                                  "commfuse pack llama.pack --manifest llama.kernels.json --sign release.key");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("FILE", arguments->file, "File to write")->required();
  command->add_option("--manifest", arguments->manifests, "Take what these list, else every intact kernel");
  auto* sign = command->add_option("--sign", arguments->sign, "Sign with the secret key in this file");
  command->add_flag("--new-key", arguments->new_key, "Make that key first, and its public half with the ending .pub")
      ->needs(sign);
  command->add_option("--cache-dir", arguments->cache_dir, "Cache folder, else COMMFUSE_CACHE_DIR, else the user's");
  command->callback(
      [arguments, &session] { session.run = [arguments, &session] { return pack_cache(*arguments, session.json); }; });
}

}  // namespace commfuse::cli
