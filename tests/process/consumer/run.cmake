# Installs commfuse to a folder, builds the README's example against it, and runs the example where it finds no driver.
# cmake -DBUILD_DIR=... -DSOURCE_DIR=... -DWORK_DIR=... -DCOMPILER=... -P run.cmake
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN} ended with ${result}:\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/prefix)
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK_DIR}/build -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix
    -DCMAKE_CXX_COMPILER=${COMPILER} -DEMBED_SOURCE=${SOURCE_DIR}/examples/embed.cpp)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)

set(ENV{COMMFUSE_LIBCUDA} /nowhere/libcuda.so)
execute_process(COMMAND ${WORK_DIR}/build/embed ${WORK_DIR}/prefix/share/commfuse/deployments/llama-3.1-70b-tp8.json
                RESULT_VARIABLE result ERROR_VARIABLE output)
if(NOT result EQUAL 1 OR NOT output MATCHES "/nowhere/libcuda.so")
  message(FATAL_ERROR "the example ended with ${result} and said: ${output}")
endif()
run(${WORK_DIR}/prefix/bin/commfuse --version)

# Nothing installed may know where it was built: people copy such folders into images.
file(GLOB_RECURSE texts ${WORK_DIR}/prefix/*.cmake ${WORK_DIR}/prefix/*.hpp ${WORK_DIR}/prefix/*.json)
foreach(file IN LISTS texts)
  file(READ ${file} text)
  foreach(folder ${BUILD_DIR} ${SOURCE_DIR})
    string(FIND "${text}" ${folder} found)
    if(NOT found EQUAL -1)
      message(FATAL_ERROR "${file} names ${folder}")
    endif()
  endforeach()
endforeach()

file(READ ${SOURCE_DIR}/README.md readme)
file(READ ${SOURCE_DIR}/examples/embed.cpp example)
string(FIND "${readme}" "${example}" found)
if(found EQUAL -1)
  message(FATAL_ERROR "README.md does not show examples/embed.cpp as it is")
endif()
