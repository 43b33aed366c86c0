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
set(commfuse_cuda_places ${PROJECT_SOURCE_DIR}/.cuda/include)
if(NOT "$ENV{COMMFUSE_IGNORE_TOOLKIT}")
  list(PREPEND commfuse_cuda_places $ENV{CUDA_HOME}/include /usr/local/cuda/include)
endif()
foreach(place IN LISTS commfuse_cuda_places)
  if(NOT COMMFUSE_CUDA_INCLUDE AND EXISTS ${place}/cuda.h AND EXISTS ${place}/nvrtc.h)
    set(COMMFUSE_CUDA_INCLUDE ${place} CACHE PATH "Folder of cuda.h and nvrtc.h")
  endif()
endforeach()
if(NOT COMMFUSE_CUDA_INCLUDE)
  message(FATAL_ERROR "cuda.h and nvrtc.h not found in any of ${commfuse_cuda_places}; run scripts/install_deps.sh")
endif()
# A program looks for private CUDA libraries in lib/commfuse/cuda below the folders above its own, so that none holds a
# path of the machine that built it. This is where programs of the build tree find those of the source tree.
if(EXISTS ${PROJECT_SOURCE_DIR}/.cuda/lib)
  foreach(folder lib/commfuse tests/lib/commfuse)
    file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/${folder})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/.cuda ${PROJECT_BINARY_DIR}/${folder}/cuda SYMBOLIC)
  endforeach()
endif()
add_library(commfuse_cuda_headers INTERFACE)
target_include_directories(commfuse_cuda_headers SYSTEM INTERFACE ${COMMFUSE_CUDA_INCLUDE})
