// An exchange over MPI. Of the library commfuse_mpi, which exists where COMMFUSE_MPI was on and MPI was found; commfuse
// itself never links MPI.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>

#include "commfuse/exchange.hpp"

namespace commfuse {

/// The group of a communicator, which must stay alive only for this call; MPI must be initialised, and not finalised
/// before the exchange is destroyed. Collective over the communicator. One thread at a time may be in any exchange over
/// MPI, unless MPI was initialised for several. Descriptors go over a Unix socket among the ranks of a host.
///
/// @param name  for messages; the same on every rank
[[nodiscard]] std::unique_ptr<Exchange> make_mpi_exchange(MPI_Comm communicator, const std::string& name,
                                                          Timeout timeout);

}  // namespace commfuse
