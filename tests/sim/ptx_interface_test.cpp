// The simulator offers exactly the intrinsics that templates/device/ptx.cuh has, with the same parameters.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace {

/// "u32 load_weak(const u32*)" for every device function of a header: types only, since names may differ.
std::set<std::string> signatures(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::stringstream content;
  content << file.rdbuf();
  const std::string text = content.str();
  std::set<std::string> all;
  const std::regex function(R"(COMMFUSE_DEVICE\s+([\w&]+)\s+(\w+)\(([^{]*)\)\s*\{)");
  const std::regex parameter_name(R"(\s*\b\w+\s*(,|$))");
  for (auto match = std::sregex_iterator(text.begin(), text.end(), function); match != std::sregex_iterator();
       ++match) {
    const std::string parameters = std::regex_replace((*match)[3].str(), parameter_name, "$1");
    all.insert((*match)[1].str() + " " + (*match)[2].str() + "(" +
               std::regex_replace(parameters, std::regex(R"(\s+)"), " ") + ")");
  }
  return all;
}

TEST(PtxInterface, SimulatorHasTheSameFunctionsAsTheDevice) {
  auto device = signatures(COMMFUSE_SOURCE_DIR "/templates/device/ptx.cuh");
  auto simulator = signatures(COMMFUSE_SOURCE_DIR "/tests/sim/ptx.hpp");
  EXPECT_GT(device.size(), 50u);
  // Instructions that only some architectures have: the templates hold the same in software, which the simulator runs.
  for (auto f = device.begin(); f != device.end();) {
    f = f->find("floats_to_e4m3x2") != std::string::npos || f->find("floats_to_e2m1x8") != std::string::npos
            ? device.erase(f)
            : std::next(f);
  }
  simulator.erase("T simulated_load(const T*)");
  for (const auto& f : device) EXPECT_TRUE(simulator.contains(f)) << "the simulator lacks " << f;
  for (const auto& f : simulator) EXPECT_TRUE(device.contains(f)) << "the device lacks " << f;
}

}  // namespace
