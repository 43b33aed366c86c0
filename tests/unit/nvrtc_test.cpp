#include "runtime/nvrtc.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "jit_support.hpp"
#include "runtime/nvrtc_search.hpp"

namespace commfuse::runtime {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> paths(const NvrtcPlaces& places) {
  std::vector<std::string> result;
  for (const auto& candidate : places.candidates) result.push_back(candidate.path);
  return result;
}

bool contains(const std::vector<std::string>& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

TEST(NvrtcSearch, LooksNowhereElseWhenToldAFileOrAFolder) {
  const test::TemporaryFolder folder;
  const std::string file = test::copy_nvrtc_shim(folder.path());
  for (const std::string& told : {file, folder.path().string()}) {
    Env env = test::only(told);
    env.ld_library_path = "/usr/local/cuda/lib64";
    const NvrtcPlaces places = find_nvrtc(env);
    EXPECT_EQ(paths(places), std::vector<std::string>{file});
    EXPECT_EQ(places.looked_at, std::vector<std::string>{told});
  }
  EXPECT_TRUE(find_nvrtc(test::only(folder / "missing")).candidates.empty());
}

TEST(NvrtcSearch, TakesAnOddCudaHomeApart) {
  const test::TemporaryFolder folder;
  const std::string file = test::copy_nvrtc_shim(folder.path() / "toolkit/lib64");
  for (const std::string& home :
       {":" + (folder / "toolkit"), folder / "toolkit:", "/nonexistent:" + (folder / "toolkit")}) {
    Env env;
    env.cuda_home = home;
    EXPECT_EQ(find_nvrtc(env).candidates.at(0).path, file) << home;
  }
  Env ignoring;
  ignoring.cuda_home = folder / "toolkit";
  ignoring.ignore_toolkit = true;
  EXPECT_FALSE(contains(paths(find_nvrtc(ignoring)), file));
}

TEST(NvrtcSearch, FindsTheLibrariesOfPythonPackages) {
  const test::TemporaryFolder folder;
  const std::string thirteen = test::copy_nvrtc_shim(folder.path() / "lib/python3.12/site-packages/nvidia/cu13/lib");
  const std::string twelve =
      test::copy_nvrtc_shim(folder.path() / "lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib");
  Env env;
  env.virtual_env = folder.path();
  const std::vector<std::string> found = paths(find_nvrtc(env));
  EXPECT_TRUE(contains(found, thirteen));
  EXPECT_TRUE(contains(found, twelve));
}

TEST(NvrtcSearch, FindsThePrivateFolder) {
  const test::TemporaryFolder folder;
  const std::string file = test::copy_nvrtc_shim(folder.path() / "commfuse/cuda/lib");
  Env env;
  env.ignore_toolkit = true;
  env.xdg_data_home = folder.path();
  EXPECT_TRUE(contains(paths(find_nvrtc(env)), file));
}

TEST(NvrtcSearch, NamesEveryFileOnce) {
  const test::TemporaryFolder folder;
  const std::string file = test::copy_nvrtc_shim(folder.path() / "lib64");
  fs::create_symlink("libnvrtc.so.99", folder.path() / "lib64/libnvrtc.so");
  fs::create_directory_symlink(folder.path() / "lib64", folder.path() / "lib");
  Env env;
  env.cuda_home = folder.path();
  env.ld_library_path = folder / "lib";
  const std::vector<std::string> found = paths(find_nvrtc(env));
  EXPECT_EQ(std::count(found.begin(), found.end(), file), 1);
}

TEST(NvrtcSearch, PassesOverRelativeFolders) {
  const test::TemporaryFolder folder;
  const std::string file = test::copy_nvrtc_shim(folder.path());
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  Env env;
  env.ld_library_path = ":.:";
  env.cuda_home = ".";
  const std::vector<std::string> found = paths(find_nvrtc(env));
  fs::current_path(before);
  EXPECT_FALSE(contains(found, file));
}

TEST(Nvrtc, TellsItsVersionAndArchitectures) {
  const test::TemporaryFolder folder;
  const Nvrtc nvrtc = Nvrtc::open(test::copy_nvrtc_shim(folder.path()));
  EXPECT_EQ(nvrtc.version(), (NvrtcVersion{99, 1}));
  EXPECT_EQ(nvrtc.archs(), (std::vector<int>{70, 80, 90}));
}

TEST(Nvrtc, RefusesAnOldOneNamingPathVersionAndArchitectures) {
  const test::TemporaryFolder folder;
  const std::string file = test::copy_nvrtc_shim(folder.path(), 11);
  const Error error = test::error_of([&] { (void)Nvrtc::open(file); });
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_NE(error.message().find(file), std::string::npos);
  EXPECT_NE(error.cause().find("11.1"), std::string::npos);
  EXPECT_NE(error.cause().find("sm_70, sm_80, sm_90"), std::string::npos);
}

TEST(Nvrtc, RefusesALibraryThatIsSomethingElse) {
  const Error other = test::error_of([] { (void)Nvrtc::open(COMMFUSE_CUDA_SHIM); });
  EXPECT_EQ(other.code(), Code::kNotFound);
  EXPECT_NE(other.cause().find("nvrtcVersion"), std::string::npos);

  const test::TemporaryFolder folder;
  std::ofstream(folder / "libnvrtc.so.13") << "no library";
  EXPECT_EQ(test::error_of([&] { (void)Nvrtc::open(folder / "libnvrtc.so.13"); }).code(), Code::kNotFound);
}

TEST(Nvrtc, NamesTheBuiltinsThatAreMissingAndWhereTheyShouldBe) {
  const test::TemporaryFolder folder;
  Nvrtc nvrtc = Nvrtc::open(test::copy_nvrtc_shim(folder.path()));
  nvrtc.load_builtins();
  EXPECT_NE(nvrtc.builtins_problem().find("libnvrtc-builtins.so.99.1"), std::string::npos);
  EXPECT_NE(nvrtc.builtins_problem().find(folder.path().string()), std::string::npos);
}

TEST(Nvrtc, LoadsTheBuiltinsThatLieBesideIt) {
  const test::TemporaryFolder folder;
  Nvrtc nvrtc = Nvrtc::open(test::copy_nvrtc_shim(folder.path()));
  const std::string builtins = folder / "libnvrtc-builtins.so.99.1";
  fs::copy_file(COMMFUSE_CUDA_SHIM, builtins);  // any library will do
  nvrtc.load_builtins();
  EXPECT_EQ(nvrtc.builtins_problem(), "");
  EXPECT_TRUE(test::is_open(builtins));
}

}  // namespace
}  // namespace commfuse::runtime
