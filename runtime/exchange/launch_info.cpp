// What launchers tell the processes that they start.
#include <unistd.h>

#include <charconv>
#include <optional>

#include "commfuse/exchange.hpp"

extern char** environ;

namespace commfuse {
namespace {

using Environment = std::map<std::string, std::string>;

class Reader {
 public:
  Reader(const Environment& environment, Launcher launcher) : environment_(environment), launcher_(launcher) {}

  [[nodiscard]] std::string text(const std::string& name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? "" : found->second;
  }
  [[nodiscard]] bool has(const std::string& name) const { return !text(name).empty(); }

  [[nodiscard]] std::optional<int> number(const std::string& name) const {
    const std::string value = text(name);
    if (value.empty()) return std::nullopt;
    int result = 0;
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, result);
    if (error != std::errc() || stop != end || result < 0) {
      throw wrong(name + " is '" + value + "', which is no number from 0 up");
    }
    return result;
  }
  [[nodiscard]] std::optional<int> number(const std::string& first, const std::string& second) const {
    const auto value = number(first);
    return value ? value : number(second);
  }
  [[nodiscard]] int needed(const std::string& name, const std::string& because) const {
    const auto value = number(name);
    if (!value) throw wrong(name + " is not set, but " + because + " is");
    return *value;
  }
  [[nodiscard]] Error wrong(const std::string& cause) const {
    return {Code::kInvalidArgument,
            "cannot tell this process's rank from what " + std::string(to_string(launcher_)) + " set", cause,
            "Start all ranks with one launcher, or pass rank and size yourself"};
  }

 private:
  const Environment& environment_;
  Launcher launcher_;
};

/// Number `index` of SLURM's short form of a list: "4(x2),3" stands for 4, 4, 3.
std::optional<int> entry_of_list(std::string_view list, int index) {
  while (!list.empty()) {
    const std::string_view item = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), item.size() + 1));
    int value = 0, times = 1;
    const char* end = item.data() + item.size();
    auto parsed = std::from_chars(item.data(), end, value);
    if (parsed.ec != std::errc()) return std::nullopt;
    if (parsed.ptr != end) {
      const std::string_view rest(parsed.ptr, static_cast<std::size_t>(end - parsed.ptr));
      if (!rest.starts_with("(x") || !rest.ends_with(")")) return std::nullopt;
      parsed = std::from_chars(parsed.ptr + 2, end - 1, times);
      if (parsed.ec != std::errc() || parsed.ptr != end - 1 || times < 1) return std::nullopt;
    }
    if (index < times) return value;
    index -= times;
  }
  return std::nullopt;
}

LaunchInfo read_torchrun(const Reader& reader) {
  LaunchInfo info;
  info.rank = reader.needed("RANK", "WORLD_SIZE");
  info.size = reader.needed("WORLD_SIZE", "RANK");
  info.local_rank = reader.number("LOCAL_RANK").value_or(-1);
  info.local_size = reader.number("LOCAL_WORLD_SIZE").value_or(-1);
  info.master_host = reader.text("MASTER_ADDR");
  info.master_port = reader.number("MASTER_PORT").value_or(0);
  if (!info.master_host.empty() || reader.has("TORCHELASTIC_RUN_ID")) {
    // The run id alone is "none" for every plain torchrun; no two jobs have one store at one time, and a restart by
    // torchrun is a new start of the job.
    info.job = "torchrun " + reader.text("TORCHELASTIC_RUN_ID") + " " + info.master_host + " " +
               reader.text("MASTER_PORT") + " " + reader.text("TORCHELASTIC_RESTART_COUNT");
  }
  return info;
}

LaunchInfo read_open_mpi(const Reader& reader) {
  LaunchInfo info;
  info.launcher = Launcher::kOpenMpi;
  info.rank = reader.needed("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  info.size = reader.needed("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
  info.local_rank = reader.number("OMPI_COMM_WORLD_LOCAL_RANK").value_or(-1);
  info.local_size = reader.number("OMPI_COMM_WORLD_LOCAL_SIZE").value_or(-1);
  const std::string name = reader.text("PMIX_NAMESPACE") + " " + reader.text("OMPI_MCA_ess_base_jobid") + " " +
                           reader.text("OMPI_MCA_orte_precondition_transports");
  if (name != "  ") info.job = "mpirun " + name;
  return info;
}

LaunchInfo read_pmi(const Reader& reader) {
  LaunchInfo info;
  info.launcher = Launcher::kPmi;
  info.rank = reader.needed("PMI_RANK", "PMI_SIZE");
  info.size = reader.needed("PMI_SIZE", "PMI_RANK");
  info.local_rank = reader.number("MPI_LOCALRANKID", "PMI_LOCAL_RANK").value_or(-1);
  info.local_size = reader.number("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE").value_or(-1);
  for (const char* name : {"PMI_JOBID", "PMIX_NAMESPACE", "PMI_PORT"}) {
    if (info.job.empty() && reader.has(name)) info.job = "pmi " + reader.text(name);
  }
  if (reader.has("SLURM_JOB_ID") && info.job.empty()) {
    info.job = "pmi slurm " + reader.text("SLURM_JOB_ID") + " " + reader.text("SLURM_STEP_ID");
  }
  return info;
}

LaunchInfo read_slurm(const Reader& reader) {
  LaunchInfo info;
  info.launcher = Launcher::kSlurm;
  info.rank = reader.needed("SLURM_PROCID", "SLURM_NTASKS");
  const auto size = reader.number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
  if (!size) throw reader.wrong("neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS is set, but SLURM_PROCID is");
  info.size = *size;
  info.local_rank = reader.number("SLURM_LOCALID").value_or(-1);
  const std::string list = reader.has("SLURM_STEP_TASKS_PER_NODE") ? reader.text("SLURM_STEP_TASKS_PER_NODE")
                                                                   : reader.text("SLURM_TASKS_PER_NODE");
  if (const auto node = reader.number("SLURM_NODEID"); node && !list.empty()) {
    const auto entry = entry_of_list(list, *node);
    if (!entry)
      throw reader.wrong("the list of tasks per node '" + list + "' has no entry for node " + std::to_string(*node));
    info.local_size = *entry;
  } else if (reader.number("SLURM_STEP_NUM_NODES", "SLURM_NNODES") == 1) {
    info.local_size = info.size;
  }
  if (reader.has("SLURM_JOB_ID")) {
    info.job = "slurm " + reader.text("SLURM_JOB_ID") + " " + reader.text("SLURM_STEP_ID") + " " +
               reader.text("SLURM_RESTART_COUNT");
  }
  info.master_host = reader.text("SLURM_LAUNCH_NODE_IPADDR");
  return info;
}

void check(const LaunchInfo& info, const Reader& reader) {
  const auto describe = [](int rank, int size) {
    return "rank " + std::to_string(rank) + " of " + std::to_string(size);
  };
  if (info.size < 1) throw reader.wrong("the size is 0");
  if (info.rank >= info.size) throw reader.wrong(describe(info.rank, info.size) + " cannot be");
  if (info.local_size == 0 || info.local_size > info.size) {
    throw reader.wrong(std::to_string(info.local_size) + " ranks on this host of " + std::to_string(info.size) +
                       " cannot be");
  }
  if (info.local_size > 0 && info.local_rank >= info.local_size) {
    throw reader.wrong("local " + describe(info.local_rank, info.local_size) + " cannot be");
  }
  if (info.local_rank >= info.size) throw reader.wrong("local " + describe(info.local_rank, info.size) + " cannot be");
  if (info.master_port > 65535) throw reader.wrong("port " + std::to_string(info.master_port) + " cannot be");
}

}  // namespace

std::string_view to_string(Launcher launcher) noexcept {
  switch (launcher) {
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
      return "mpirun (Open MPI)";
    case Launcher::kPmi:
      return "a PMI launcher";
    case Launcher::kSlurm:
      return "srun";
  }
  return "unknown";
}

std::map<std::string, std::string> process_environment() {
  Environment result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string_view::npos) result.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

LaunchInfo read_launch(const Environment& environment) {
  // Launchers run inside each other: torchrun under mpirun or srun, mpirun in a SLURM allocation. The innermost started
  // this process, and what an outer one set is about something else.
  struct Choice {
    Launcher launcher;
    const char* rank;
    const char* size;
    LaunchInfo (*read)(const Reader&);
  };
  for (const Choice& choice :
       {Choice{Launcher::kTorchrun, "RANK", "WORLD_SIZE", read_torchrun},
        Choice{Launcher::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", read_open_mpi},
        Choice{Launcher::kPmi, "PMI_RANK", "PMI_SIZE", read_pmi},
        Choice{Launcher::kSlurm, "SLURM_PROCID", "SLURM_PROCID", read_slurm}}) {
    const Reader reader(environment, choice.launcher);
    if (!reader.has(choice.rank) && !reader.has(choice.size)) continue;
    LaunchInfo info = choice.read(reader);
    check(info, reader);
    if (const std::string job = reader.text("COMMFUSE_EXCHANGE_JOB"); !job.empty()) info.job = job;
    return info;
  }
  throw Error(Code::kNotFound, "cannot tell this process's rank",
              "none of RANK, OMPI_COMM_WORLD_RANK, PMI_RANK and SLURM_PROCID is set",
              "Start it with torchrun, mpirun or srun, or pass rank and size yourself");
}

}  // namespace commfuse
