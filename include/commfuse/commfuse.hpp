// Everything a C++ engine calls.
#pragma once

#include "commfuse/engine.hpp"
#include "commfuse/error.hpp"
#include "commfuse/exchange.hpp"
#include "commfuse/lamport.hpp"
#include "commfuse/operations.hpp"
#include "commfuse/planner.hpp"
#include "commfuse/spec.hpp"
#include "commfuse/version.hpp"
#include "commfuse/workspace.hpp"
#include "commfuse/workspace_metadata.hpp"
