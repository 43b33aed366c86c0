#include <cuda.h>

#include <array>
#include <memory>
#include <utility>

#include "commfuse/planner.hpp"
#include "runtime/driver.hpp"
#include "runtime/planner_table.hpp"
#include "runtime/tuning.hpp"

namespace commfuse {

PlannerTable PlannerTable::load(const std::filesystem::path& file) {
  return PlannerTable(std::make_shared<const runtime::TuningTable>(runtime::TuningTable::load(file)));
}
PlannerTable PlannerTable::parse(std::string_view text, std::string_view origin) {
  return PlannerTable(std::make_shared<const runtime::TuningTable>(runtime::TuningTable::parse(text, origin)));
}
std::string PlannerTable::to_json() const { return table_ ? table_->to_json() : std::string(); }
std::string PlannerTable::device() const { return table_ ? table_->device : std::string(); }
DeviceCaps PlannerTable::caps() const noexcept {
  if (!table_) return {};
  return {.sm_count = table_->sm_count, .ranks_on_device = table_->ranks_on_device};
}
const runtime::TuningEntry* PlannerTable::find(const KernelSpec& shape) const noexcept {
  return table_ ? table_->find(shape) : nullptr;
}

namespace runtime {

PlannerTable table_for_device(const PlannerTable& table, CUdevice device, const DeviceCaps& caps) {
  if (table.is_empty()) return {};
  std::array<char, 256> name{};
  COMMFUSE_DRIVER(cuDeviceGetName(name.data(), static_cast<int>(name.size()), device));
  const DeviceCaps measured = table.caps();
  const bool applies = table.device() == name.data() && measured.sm_count == caps.sm_count &&
                       measured.ranks_on_device == caps.ranks_on_device;
  return applies ? table : PlannerTable();
}

}  // namespace runtime
}  // namespace commfuse
