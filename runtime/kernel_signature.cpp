#include "runtime/kernel_signature.hpp"

#include <map>

#include "cache/sha256.hpp"
#include "runtime/toolchain.hpp"

namespace commfuse::runtime {
namespace {

std::map<std::string, std::string> hash_headers(std::span<const EmbeddedTemplate> headers) {
  std::map<std::string, std::string> hashes;
  for (const EmbeddedTemplate& header : headers) hashes.emplace(header.name, cache::sha256_hex(header.text));
  return hashes;
}

}  // namespace

cache::Signature signature_of(const KernelSpec& spec, const Program& program, const std::string& build) {
  static const std::map<std::string, std::string> kEmbedded = hash_headers(embedded_templates());
  cache::Signature signature;
  signature.kernel = program.name;
  signature.spec_json = spec.to_json();
  signature.source_sha256 = cache::sha256_hex(program.source);
  const bool embedded = program.headers.data() == embedded_templates().data();
  signature.headers_sha256 = embedded ? kEmbedded : hash_headers(program.headers);
  signature.options = compile_options(version_of(build), spec.arch);
  signature.nvrtc_build = build;
  signature.arch = spec.arch;
  return signature;
}

}  // namespace commfuse::runtime
