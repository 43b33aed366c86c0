#include "cache/pack.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>

#include "cache/ed25519.hpp"
#include "cache/pack_format.hpp"
#include "cache/ustar.hpp"
#include "commfuse/error.hpp"
#include "unit/cache_testing.hpp"

namespace commfuse::cache {
namespace {

using testing::options_for;
using testing::read_all;
using testing::Sample;
using testing::write_all;
namespace fs = std::filesystem;

class PackTest : public ::testing::Test {
 protected:
  PackTest() : store_(options_for(dir_ / "cache")) {
    for (const char* name : {"kernel_a", "kernel_b", "kernel_c"}) {
      samples_.emplace_back(name, 700);
      EXPECT_TRUE(samples_.back().publish(store_).stored());
    }
  }

  fs::path pack(const PackOptions& options = {}, const char* name = "kernels.tar") {
    (void)write_pack(store_, dir_ / name, options);
    return dir_ / name;
  }

  static std::string refusal(const fs::path& file, const std::vector<std::string>& trusted = {}) {
    try {
      (void)Pack::open(file, trusted);
    } catch (const Error& e) {
      return e.code() == Code::kInvalidInput ? e.cause() : "another code";
    }
    return {};
  }

  testing::TemporaryDirectory dir_;
  Store store_;
  std::vector<Sample> samples_;
};

TEST_F(PackTest, ReturnsEveryEntryToAnotherCacheByteForByte) {
  const auto pack_file = Pack::open(pack());
  EXPECT_EQ(pack_file->entries().size(), 3u);
  EXPECT_EQ(pack_file->signer(), "");
  const Store target(options_for(dir_ / "target"));
  UnpackReport report = unpack(*pack_file, target);
  EXPECT_EQ(report.stored, 3u);
  EXPECT_TRUE(report.failures.empty());
  for (const Sample& sample : samples_) {
    EXPECT_EQ(read_all(sample.json_in(dir_ / "target")), read_all(sample.json_in(dir_ / "cache")));
    EXPECT_EQ(sample.find(target).hit->cubin, sample.cubin);
  }
  report = unpack(*pack_file, target);
  EXPECT_EQ(report.kept, 3u);
}

TEST_F(PackTest, EqualEntriesMakeEqualBytesWhereverTheyLie) {
  const std::string bytes = read_all(pack());
  const Store copy(options_for(dir_ / "elsewhere"));
  (void)unpack(*Pack::open(dir_ / "kernels.tar"), copy);
  fs::last_write_time(samples_[0].json_in(dir_ / "elsewhere"),
                      fs::file_time_type::clock::now() - std::chrono::hours(9));
  (void)write_pack(copy, dir_ / "again.tar");
  EXPECT_EQ(read_all(dir_ / "again.tar"), bytes);
}

TEST_F(PackTest, IsAnArchiveThatTarReads) {
  const fs::path file = pack();
  ASSERT_EQ(std::system("command -v tar >/dev/null 2>&1"), 0);
  fs::create_directory(dir_ / "out");
  const std::string command = "tar -xf '" + file.string() + "' -C '" + (dir_ / "out").string() + "' 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(read_all(samples_[1].cubin_in(dir_ / "out")), samples_[1].cubin);
  EXPECT_TRUE(fs::exists(dir_ / "out/manifest.json"));
}

TEST_F(PackTest, TakesOnlyChosenEntriesAndNamesOneThatIsMissing) {
  PackOptions options;
  options.keys = {samples_[2].key, samples_[0].key, samples_[2].key};
  const auto entries = write_pack(store_, dir_ / "two.tar", options);
  EXPECT_EQ(entries.size(), 2u);
  EXPECT_TRUE(std::is_sorted(entries.begin(), entries.end(), [](auto& a, auto& b) { return a.key < b.key; }));
  write_all(samples_[0].cubin_in(dir_ / "cache"), "broken");
  EXPECT_THROW((void)write_pack(store_, dir_ / "three.tar", options), Error);
  EXPECT_FALSE(fs::exists(dir_ / "three.tar"));
  options.keys = {};
  EXPECT_EQ(write_pack(store_, dir_ / "intact.tar", options).size(), 2u) << "without the damaged one";
}

TEST_F(PackTest, IsALayerAsItIs) {
  const fs::path file = pack();
  StoreOptions options = options_for(dir_ / "w");
  options.directories.readonly = {file};
  const Store store(options);
  const Lookup found = samples_[1].find(store);
  ASSERT_TRUE(found);
  EXPECT_EQ(found.hit->cubin, samples_[1].cubin);
  EXPECT_EQ(found.hit->origin, file);
  EXPECT_EQ(store.list().size(), 3u);
  EXPECT_FALSE(Sample("unknown").find(store));
  EXPECT_FALSE(fs::exists(dir_ / "w"));
}

TEST_F(PackTest, ALayerThatIsNoPackOrThatOthersCanWriteToIsWarnedOfAndPassedOver) {
  const fs::path file = pack();
  ASSERT_EQ(::chmod(file.c_str(), 0666), 0);
  write_all(dir_ / "no.tar", "not a pack");
  std::vector<std::string> warnings;
  StoreOptions options = options_for(dir_ / "w", &warnings);
  options.directories.readonly = {file, dir_ / "no.tar"};
  EXPECT_FALSE(samples_[0].find(Store(options)));
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_NE(warnings[0].find("COMMFUSE_CACHE_TRUST"), std::string::npos);
  options.directories.trusted = {file};
  EXPECT_TRUE(samples_[0].find(Store(options)));
}

TEST_F(PackTest, ASignedPackIsTiedToItsKey) {
  const KeyPair pair = make_key_pair(), other = make_key_pair();
  PackOptions options;
  options.secret_key = pair.secret;
  const fs::path file = pack(options, "signed.tar");
  EXPECT_EQ(Pack::open(file, {other.public_key, pair.public_key})->signer(), pair.public_key);
  EXPECT_NE(refusal(file, {other.public_key}).find("not trusted"), std::string::npos);
  EXPECT_NE(refusal(pack(), {pair.public_key}).find("not signed"), std::string::npos);

  // Another's signature over another manifest does not fit, nor does ours over what we did not sign.
  std::string bytes = read_all(file);
  const std::size_t at = bytes.find(samples_[0].key);
  ASSERT_NE(at, std::string::npos);
  bytes[bytes.find("kernel_a")] = 'K';
  write_all(dir_ / "changed.tar", bytes);
  EXPECT_NE(refusal(dir_ / "changed.tar").find("signature is wrong"), std::string::npos);
}

TEST_F(PackTest, EveryTruncationIsRefused) {
  const std::string bytes = read_all(pack());
  for (std::size_t n = 0; n < bytes.size(); n += 97) {
    write_all(dir_ / "cut.tar", bytes.substr(0, n));
    ASSERT_NE(refusal(dir_ / "cut.tar"), "") << n;
  }
  write_all(dir_ / "cut.tar", bytes + std::string(512, '\0'));
  EXPECT_NE(refusal(dir_ / "cut.tar"), "");
}

TEST_F(PackTest, NoFlippedByteGoesUnnoticedAndNothingIsUnpackedThen) {
  PackOptions options;
  options.secret_key = make_key_pair().secret;
  options.keys = {samples_[0].key};
  const fs::path file = pack(options);
  const std::string bytes = read_all(file);
  for (std::size_t i = 0; i < bytes.size(); i += 7) {
    std::string flipped = bytes;
    flipped[i] = static_cast<char>(flipped[i] ^ 4);
    write_all(file, flipped);
    const Store target(options_for(dir_ / "target"));
    EXPECT_THROW((void)unpack(*Pack::open(file), target), Error) << "byte " << i;
    ASSERT_FALSE(fs::exists(dir_ / "target")) << "byte " << i;
  }
}

// An archive made by hand, with whatever members.
std::string archive(const std::vector<std::pair<std::array<char, kTarBlock>, std::string>>& members) {
  std::string bytes;
  for (const auto& [header, data] : members) {
    bytes.append(header.data(), header.size());
    bytes += data + std::string(tar_padded(data.size()) - data.size(), '\0');
  }
  return bytes + std::string(2 * kTarBlock, '\0');
}

TEST_F(PackTest, PathsLinksDevicesAndForeignArchivesAreRefused) {
  const std::string manifest = pack_manifest({});
  const auto good = tar_header(kPackManifest, manifest.size());
  const auto try_archive = [&](const std::string& bytes) {
    write_all(dir_ / "evil.tar", bytes);
    return refusal(dir_ / "evil.tar");
  };
  ASSERT_EQ(try_archive(archive({{good, manifest}})), "");
  EXPECT_NE(try_archive(archive({{good, manifest}, {tar_header("../../evil", 1), "x"}})), "");
  EXPECT_NE(try_archive(archive({{good, manifest}, {tar_header("/etc/cron.d/x", 1), "x"}})), "");
  EXPECT_NE(try_archive(archive({{tar_header("other.json", manifest.size()), manifest}})), "");
  for (const char type : {'1', '2', '3', '4', '5', '6', '7', 'L', 'K', 'x', 'g', 'S'}) {
    auto header = good;
    header[156] = type;
    EXPECT_NE(try_archive(archive({{header, manifest}})), "") << type;
  }
  auto linked = good;
  linked[157] = 'x';
  EXPECT_NE(try_archive(archive({{linked, manifest}})), "");
  EXPECT_NE(try_archive(std::string("\x1f\x8b\x08", 3) + std::string(2000, 'z')), "");
  EXPECT_NE(try_archive(""), "");
}

TEST_F(PackTest, AManifestThatPromisesTooMuchIsRefusedBeforeAnythingIsAllocated) {
  PackEntry huge;
  huge.key = std::string(64, 'a');
  huge.cubin_sha256 = huge.metadata_sha256 = std::string(64, 'b');
  const auto attempt = [&](std::uint64_t cubin, std::uint64_t metadata) {
    huge.cubin_bytes = cubin;
    huge.metadata_bytes = metadata;
    const std::string manifest = pack_manifest({huge});
    write_all(dir_ / "bomb.tar", archive({{tar_header(kPackManifest, manifest.size()), manifest}}));
    return refusal(dir_ / "bomb.tar");
  };
  EXPECT_NE(attempt(~std::uint64_t{0}, 1), "");
  EXPECT_NE(attempt(~std::uint64_t{0} - 1023, 1024), "");
  EXPECT_NE(attempt(1 << 20, 1), "");
  EXPECT_NE(attempt(0, std::uint64_t{1} << 40), "");
  // A header that claims gigabytes for the manifest itself.
  write_all(dir_ / "bomb.tar", archive({{tar_header(kPackManifest, std::uint64_t{4} << 30), "x"}}));
  EXPECT_NE(refusal(dir_ / "bomb.tar"), "");
}

TEST_F(PackTest, DiffTellsWhatIsMissingAndWhatHasOtherBytes) {
  const std::vector<PackEntry> all = inventory(store_);
  ASSERT_EQ(all.size(), 3u);
  std::vector<PackEntry> other = {all[1], all[2]};
  other[0].cubin_sha256 = std::string(64, '0');
  const PackDifference difference = diff(all, other);
  EXPECT_EQ(difference.only_in_first, std::vector<PackEntry>{all[0]});
  EXPECT_TRUE(difference.only_in_second.empty());
  EXPECT_EQ(difference.other_cubin, std::vector<PackEntry>{other[0]});
  EXPECT_EQ(diff(other, all).only_in_second, std::vector<PackEntry>{all[0]});
  const PackDifference none = diff(all, all);
  EXPECT_TRUE(none.only_in_first.empty() && none.only_in_second.empty() && none.other_cubin.empty());
}

TEST(Ed25519, MatchesAPublishedVector) {
  // RFC 8032, 7.1, test 2: the message is the byte 0x72.
  const std::string secret = "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb";
  const std::string public_key = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c";
  const std::string signature =
      "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
      "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00";
  EXPECT_EQ(public_key_of(secret), public_key);
  EXPECT_EQ(sign("r", secret), signature);
  EXPECT_TRUE(is_signed("r", signature, public_key));
  EXPECT_FALSE(is_signed("s", signature, public_key));
  EXPECT_FALSE(is_signed("r", signature.substr(1), public_key));
  EXPECT_FALSE(is_signed("r", std::string(128, 'z'), public_key));
  EXPECT_FALSE(is_signed("r", signature, ""));
}

TEST(Ed25519, KeysLiveInFilesAndASecretMustBePrivate) {
  const testing::TemporaryDirectory dir;
  const KeyPair pair = make_key_pair();
  write_key_pair(pair, dir / "key");
  EXPECT_EQ(read_secret_key(dir / "key"), pair.secret);
  EXPECT_EQ(read_public_key(dir / "key.pub"), pair.public_key);
  EXPECT_THROW(write_key_pair(pair, dir / "key"), Error) << "a key is never overwritten";
  ASSERT_EQ(::chmod((dir / "key").c_str(), 0644), 0);
  EXPECT_THROW((void)read_secret_key(dir / "key"), Error);
  write_all(dir / "key.pub", "short");
  EXPECT_THROW((void)read_public_key(dir / "key.pub"), Error);
  EXPECT_THROW((void)read_public_key(dir / "none"), Error);
}

}  // namespace
}  // namespace commfuse::cache
