// commfuse show: everything that is known of one kernel in the cache.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cache/entry.hpp"
#include "cache/sha256.hpp"
#include "cache/signature.hpp"
#include "cache/store.hpp"
#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/units.hpp"
#include "runtime/generator.hpp"
#include "runtime/spec_json.hpp"

namespace commfuse::cli {
namespace {

using cache::EntryInfo;
using nlohmann::json;

struct Arguments {
  std::string key;
  std::filesystem::path cache_dir;
  bool source = false;
  bool signature = false;
  bool log = false;
};

/// The entry whose key starts with `prefix`; of one key in several layers, the one that is used.
EntryInfo find_entry(const cache::Store& store, const std::string& prefix) {
  EntryInfo found;
  std::vector<std::string> keys;
  for (const EntryInfo& entry : store.list()) {
    if (!entry.key.starts_with(prefix)) continue;
    const bool repeated = !keys.empty() && keys.back() == entry.key;
    if (!repeated) keys.push_back(entry.key);
    if (!repeated || (!found.problem.empty() && entry.problem.empty())) found = entry;
  }
  if (keys.empty()) {
    throw UsageError(Error(Code::kNotFound,
                           fmt::format("no kernel in the cache has a key that starts with '{}'", prefix), {},
                           "`commfuse list` shows the keys"));
  }
  if (keys.size() > 1) {
    throw UsageError(Error(Code::kInvalidArgument, fmt::format("'{}' is the start of {} keys", prefix, keys.size()),
                           fmt::format("the first two are {} and {}", keys[0], keys[1]), "give more digits"));
  }
  if (!found.problem.empty()) {
    throw Error(Code::kInvalidInput, fmt::format("the entry {} is damaged", found.key), found.problem,
                "the next precompile replaces it");
  }
  return found;
}

/// The translation unit: stored with the kernel, or generated again from the spec.
std::string source_of(const cache::Signature& signature, const json& facts) {
  if (facts.contains("source") && facts.at("source").is_string()) return facts.at("source").get<std::string>();
  std::string source = runtime::render_source(runtime::spec_from_json(signature.spec_json));
  if (cache::sha256_hex(source) != signature.source_sha256) {
    message_on_stderr(
        "commfuse: warning: another version of commfuse made this kernel; this is the source that this version "
        "makes\n");
  }
  return source;
}

std::string text_of(const EntryInfo& entry, const cache::Metadata& metadata, const cache::Signature& signature,
                    const json& facts) {
  std::string text;
  const auto line = [&](std::string_view name, std::string_view value) {
    text += fmt::format("{:<12}{}\n", name, value);
  };
  line("kernel", entry.kernel);
  line("key", entry.key);
  line("arch", entry.arch);
  line("spec", signature.spec_json);
  line("compiler", fmt::format("NVRTC {}", signature.nvrtc_build));
  line("options", fmt::format("{}", fmt::join(signature.options, " ")));
  line("cubin", fmt::format("{}, SHA-256 {}", bytes_text(metadata.cubin_bytes), metadata.cubin_sha256));
  line("file", (entry.layer / cache::cubin_name(entry.key)).string());
  line("made", fmt::format("{} UTC by commfuse {}", moment_text(metadata.created), metadata.version));
  for (const char* group : {"resources", "phases_ms", "toolchain"}) {
    if (!facts.contains(group) || !facts.at(group).is_object()) continue;
    std::string values;
    for (const auto& [name, value] : facts.at(group).items()) {
      const std::string shown = value.is_string()         ? value.get<std::string>()
                                : value.is_number_float() ? fmt::format("{:.1f}", value.get<double>())
                                                          : value.dump();
      values += fmt::format("{}{} {}", values.empty() ? "" : ", ", name, shown);
    }
    line(group, values);
  }
  const std::string log = facts.value("log", std::string());
  line("log", log.empty() ? "empty" : fmt::format("{} (see --log)", bytes_text(log.size())));
  return text;
}

int show_entry(const Arguments& arguments, bool as_json) {
  const auto store = open_store(arguments.cache_dir);
  const EntryInfo entry = find_entry(*store, arguments.key);
  const cache::Metadata metadata = cache::Metadata::parse(entry.metadata_json);
  const cache::Signature signature = cache::Signature::parse(metadata.signature_json);
  const json facts = json::parse(metadata.facts_json);
  const std::string log =
      facts.contains("log") && facts.at("log").is_string() ? facts.at("log").get<std::string>() : "";
  if (as_json) {
    const bool all = !arguments.source && !arguments.signature && !arguments.log;
    json document = {{"key", entry.key}, {"kernel", entry.kernel}, {"arch", entry.arch}};
    if (all || arguments.source) document["source"] = source_of(signature, facts);
    if (all || arguments.signature) document["signature"] = json::parse(metadata.signature_json);
    if (all || arguments.log) document["log"] = log;
    if (all) {
      document["cubin"] = {{"file", (entry.layer / cache::cubin_name(entry.key)).string()},
                           {"bytes", metadata.cubin_bytes},
                           {"sha256", metadata.cubin_sha256}};
      document["created"] = metadata.created;
      document["commfuse"] = metadata.version;
      document["facts"] = facts;
      document["facts"].erase("source");
      document["facts"].erase("log");
    }
    print_document(document);
  } else if (arguments.source) {
    print(source_of(signature, facts));
  } else if (arguments.signature) {
    print(metadata.signature_json + '\n');
  } else if (arguments.log) {
    print(log.empty() || log.ends_with('\n') ? log : log + '\n');
  } else {
    print(text_of(entry, metadata, signature, facts));
  }
  return kDone;
}

}  // namespace

void add_show(CLI::App& app, Session& session) {
  CLI::App* command = add_command(app, session, "show", "Show one kernel of the cache",
                                  "commfuse show 3fa8 --source    # the start of a key is enough");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("KEY", arguments->key, "Key of a kernel, or enough of its start")
      ->required()
      ->check([](const std::string& text) {
        const bool good =
            !text.empty() && text.size() <= 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
        return good ? std::string() : "a key is up to 64 of the digits 0 to 9 and a to f";
      });
  command->add_option("--cache-dir", arguments->cache_dir, "Cache folder, else COMMFUSE_CACHE_DIR, else the user's");
  auto* source = command->add_flag("--source", arguments->source, "Print the generated translation unit");
  auto* signature =
      command->add_flag("--signature", arguments->signature, "Print the signature, whose SHA-256 is the key");
  auto* log = command->add_flag("--log", arguments->log, "Print what the compiler said");
  source->excludes(signature)->excludes(log);
  signature->excludes(log);
  command->callback(
      [arguments, &session] { session.run = [arguments, &session] { return show_entry(*arguments, session.json); }; });
}

}  // namespace commfuse::cli
