// The simulator offers exactly the intrinsics that templates/device/ptx.cuh has, with the same parameters.
#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

/// "const u32* address" -> "const u32*": names may differ.
std::string type_of(std::string_view parameter) {
  std::string_view type = trimmed(parameter);
  while (!type.empty() && (std::isalnum(static_cast<unsigned char>(type.back())) != 0 || type.back() == '_')) {
    type.remove_suffix(1);
  }
  return std::string(trimmed(type));
}

/// "u32 load_weak(const u32*,)" for every device function of a header.
std::set<std::string> signatures(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::stringstream content;
  content << file.rdbuf();
  const std::string text = content.str();
  constexpr std::string_view kMark = "\nCOMMFUSE_DEVICE ";
  std::set<std::string> all;
  for (std::size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at + 1)) {
    const std::size_t open = text.find('(', at);
    const std::size_t close = text.find(')', open);
    std::string signature = text.substr(at + kMark.size(), open - at - kMark.size()) + "(";
    std::stringstream parameters(text.substr(open + 1, close - open - 1));
    for (std::string parameter; std::getline(parameters, parameter, ',');) signature += type_of(parameter) + ",";
    all.insert(signature + ")");
  }
  return all;
}

TEST(PtxInterface, SimulatorHasTheSameFunctionsAsTheDevice) {
  const auto device = signatures(COMMFUSE_SOURCE_DIR "/templates/device/ptx.cuh");
  const auto simulator = signatures(COMMFUSE_SOURCE_DIR "/tests/sim/ptx.hpp");
  // Instructions that only some architectures have: the templates hold the same in software, which the simulator runs.
  const auto optional = [](const std::string& signature) {
    return signature.starts_with("u32 floats_to_e4m3x2(") || signature.starts_with("u32 floats_to_e2m1x8(");
  };
  EXPECT_GT(device.size(), 50u);
  EXPECT_TRUE(device.contains("u32 compare_and_swap_sys(u32*,u32,u32,)"));
  for (const auto& f : device) {
    EXPECT_TRUE(optional(f) || simulator.contains(f)) << "the simulator lacks " << f;
  }
  for (const auto& f : simulator) {
    EXPECT_TRUE(f == "T simulated_load(const T*,sim::LoadOrder,)" || device.contains(f)) << "the device lacks " << f;
  }
}

}  // namespace
