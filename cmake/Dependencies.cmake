# What the build needs from the distribution. scripts/install_deps.sh installs all of it.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)

# A binary for another machine cannot rely on its libfmt, so the portable build takes the header-only form.
add_library(commfuse_fmt INTERFACE)
if(COMMFUSE_PORTABLE)
  target_link_libraries(commfuse_fmt INTERFACE fmt::fmt-header-only)
else()
  target_link_libraries(commfuse_fmt INTERFACE fmt::fmt)
endif()

# libsodium has no CMake package. The portable build takes the archive.
if(COMMFUSE_PORTABLE)
  find_library(COMMFUSE_SODIUM_LIBRARY NAMES libsodium.a REQUIRED)
else()
  find_library(COMMFUSE_SODIUM_LIBRARY NAMES sodium REQUIRED)
endif()
find_path(COMMFUSE_SODIUM_INCLUDE sodium.h REQUIRED)
add_library(commfuse_sodium INTERFACE)
target_link_libraries(commfuse_sodium INTERFACE $<BUILD_INTERFACE:${COMMFUSE_SODIUM_LIBRARY}> $<INSTALL_INTERFACE:sodium>)
target_include_directories(commfuse_sodium SYSTEM INTERFACE $<BUILD_INTERFACE:${COMMFUSE_SODIUM_INCLUDE}>)

find_path(COMMFUSE_VALIJSON_INCLUDE valijson/validator.hpp REQUIRED)
add_library(commfuse_valijson INTERFACE)
target_include_directories(commfuse_valijson SYSTEM INTERFACE ${COMMFUSE_VALIJSON_INCLUDE})

# CUDA headers only (types of the driver and NVRTC interfaces); both libraries are opened at run time. Looked for in
# CUDA_HOME, the usual place, and the folder that scripts/install_deps.sh fills where there is no toolkit.
find_path(COMMFUSE_CUDA_INCLUDE cuda.h
          HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include ${PROJECT_SOURCE_DIR}/.cuda/include NO_DEFAULT_PATH)
if(NOT COMMFUSE_CUDA_INCLUDE)
  message(FATAL_ERROR "cuda.h not found in CUDA_HOME, /usr/local/cuda/include or .cuda/include; run scripts/install_deps.sh")
endif()
add_library(commfuse_cuda_headers INTERFACE)
target_include_directories(commfuse_cuda_headers SYSTEM INTERFACE ${COMMFUSE_CUDA_INCLUDE})
