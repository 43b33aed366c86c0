// commfuse diff: what two packs or cache folders do not have in common.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cache/pack.hpp"
#include "cache/store.hpp"
#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/output.hpp"

namespace commfuse::cli {
namespace {

using cache::PackEntry;
using nlohmann::json;

std::vector<PackEntry> entries_of(const std::filesystem::path& place) {
  if (!std::filesystem::is_directory(place)) {
    try {
      return cache::Pack::open(place)->entries();
    } catch (const Error& error) {
      throw UsageError(error);
    }
  }
  cache::StoreOptions options;
  const cache::Directories here = cache::find_directories(cache::Environment::of_process());
  options.directories.trusted = here.trusted;
  options.directories.readonly = {std::filesystem::absolute(place)};
  std::string refused;
  options.warn = [&](std::string_view message) { refused = message; };
  const cache::Store store(std::move(options));
  std::vector<PackEntry> entries = cache::inventory(store);
  if (!refused.empty()) {
    throw UsageError(Error(Code::kInvalidInput, fmt::format("cannot compare {}", place.string()), refused));
  }
  return entries;
}

void add_lines(std::string_view mark, const std::vector<PackEntry>& entries, std::string& text) {
  for (const PackEntry& entry : entries) {
    text += fmt::format("{} {} {} {}\n", mark, entry.key.substr(0, 12), entry.arch, entry.kernel);
  }
}

json list_of(const std::vector<PackEntry>& entries) {
  json list = json::array();
  for (const PackEntry& entry : entries) list.push_back(pack_entry_document(entry));
  return list;
}

int compare(const std::filesystem::path& first, const std::filesystem::path& second, bool as_json) {
  const cache::PackDifference found = cache::diff(entries_of(first), entries_of(second));
  const bool equal = found.only_in_first.empty() && found.only_in_second.empty() && found.other_cubin.empty();
  if (as_json) {
    print_document({{"equal", equal},
                    {"only_in_first", list_of(found.only_in_first)},
                    {"only_in_second", list_of(found.only_in_second)},
                    {"other_cubin", list_of(found.other_cubin)}});
  } else {
    std::string text;
    add_lines("-", found.only_in_first, text);
    add_lines("+", found.only_in_second, text);
    add_lines("!", found.other_cubin, text);
    text += fmt::format("{} only in {}, {} only in {}, {} with another cubin\n", found.only_in_first.size(),
                        first.string(), found.only_in_second.size(), second.string(), found.other_cubin.size());
    print(text);
  }
  return equal ? kDone : kFailed;
}

}  // namespace

void add_diff(CLI::App& app, Session& session) {
  CLI::App* command = add_command(app, session, "diff", "Compare the kernels of two packs or cache folders",
                                  "commfuse diff old.pack /opt/kernels");
  auto first = std::make_shared<std::filesystem::path>();
  auto second = std::make_shared<std::filesystem::path>();
  command->add_option("FIRST", *first, "Pack or cache folder")->required()->check(CLI::ExistingPath);
  command->add_option("SECOND", *second, "Pack or cache folder")->required()->check(CLI::ExistingPath);
  command->callback([first, second, &session] {
    session.run = [first, second, &session] { return compare(*first, *second, session.json); };
  });
}

}  // namespace commfuse::cli
