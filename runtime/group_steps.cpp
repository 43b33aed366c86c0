#include "runtime/group_steps.hpp"

#include <fmt/format.h>

#include <new>

namespace commfuse::runtime {

GroupSteps::Result GroupSteps::publish(const std::function<Blob()>& part) {
  Outcome outcome;
  Blob payload;
  try {
    payload = part();
  } catch (const ExchangeError&) {
    throw;  // the exchange has told everybody
  } catch (const Error& error) {
    outcome = {error.code(),
               error.cause().empty() ? error.message() : fmt::format("{}: {}", error.message(), error.cause()),
               error.remedy()};
  } catch (const std::bad_alloc&) {
    outcome = {Code::kOutOfMemory, "the host is out of memory", ""};
  } catch (const std::exception& error) {
    outcome = {Code::kInternal, error.what(), ""};
  }
  Result result;
  for (const Blob& blob : exchange_.all_gather(write_outcome(outcome, payload), timeout_)) {
    ReadOutcome read = read_outcome(blob);
    result.ranks.push_back(std::move(read.outcome));
    result.payloads.push_back(std::move(read.payload));
  }
  return result;
}

GroupSteps::Result GroupSteps::step(const std::function<void()>& part) {
  return publish([&part]() -> Blob {
    part();
    return {};
  });
}

std::vector<Blob> GroupSteps::require_published(const std::function<Blob()>& part) {
  Result result = publish(part);
  if (!result.is_ok()) throw error_of(result.ranks);
  return std::move(result.payloads);
}

void GroupSteps::require(const std::function<void()>& part) {
  const Result result = step(part);
  if (!result.is_ok()) throw error_of(result.ranks);
}

}  // namespace commfuse::runtime
