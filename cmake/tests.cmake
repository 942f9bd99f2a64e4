# tests/<group>/*.cpp is one executable test_<group>. Each GoogleTest case in it is a ctest entry of its own,
# `Suite.claim`, with the group as its label. tests/cuda/shared/*.cpp belongs to test_simt and test_cuda.
# tests/support/*.cpp is linked to all but those of plugin_test.cmake and no_lane.cmake. The group
# `simt_libraries` runs tests of other groups too, on the emulated device with emulated libraries of NVIDIA.
# The group `programs` runs the example programs, which lie in WEFT_PROGRAM_DIR. Suites named ...Slow of
# `programs` and `rpc` have `slow-` before the label.
find_package(GTest REQUIRED)
include(GoogleTest)
set(tests ${PROJECT_SOURCE_DIR}/tests)
set(program_dir ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
if(NOT program_dir)
  set(program_dir ${PROJECT_BINARY_DIR})
endif()
# A test that hangs is ended after this long. No test comes near it on a quiet machine; the sanitizers make
# some 20 times slower. The waits of a test have limits of their own that end before, and name their cause.
set(test_seconds 300)
set(in_parts ${WEFT_TEST_PARTS})
# Tests compile in three quarters of the time or less without optimization. Those of the CPU kernels compute
# much themselves, as do the rows of the op table and their checks; bench_ops times the rows.
set(test_level -O0)
set(computing_level -O1)
if(CMAKE_BUILD_TYPE MATCHES "^(Asan|Tsan)$")
  set(in_parts ON)
  set(test_seconds 600)
  # Test code compiles in half the time; the library keeps its level and every check.
  set(test_level -O0 -fno-sanitize=undefined)
  set(computing_level ${test_level})
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12)
  list(APPEND test_level -ffold-simple-inlines)  # std::move and its like become no functions
endif()

weft_helper_library(weft_test_support ${tests}/support)
target_link_libraries(weft_test_support INTERFACE GTest::gmock GTest::gtest GTest::gtest_main)
foreach(part core distributed)
  if(TARGET weft_test_support_${part}_files)
    set(level ${computing_level})
    if(part STREQUAL "distributed")
      set(level ${test_level})
    endif()
    target_link_libraries(weft_test_support_${part}_files PUBLIC GTest::gmock GTest::gtest)
    target_compile_options(weft_test_support_${part}_files PRIVATE ${level})
    target_compile_definitions(weft_test_support_${part}_files PRIVATE WEFT_TEST_DATA_DIR="${tests}/golden")
    weft_unity(weft_test_support_${part}_files)
  endif()
endforeach()

include(cmake/test_headers.cmake)

# weft_parts(<program> <label>): the cases of a program in a few processes, `<program>.part_<i>`, instead of
# one each, without suites named ...Slow. A program takes longer to start and end than most cases to run, a
# sanitized one above all.
function(weft_parts program label)
  set(parts 12)
  math(EXPR last "${parts} - 1")
  foreach(part RANGE ${last})
    add_test(NAME ${program}.part_${part} COMMAND ${program} --gtest_filter=-*Slow.*)
    set_tests_properties(${program}.part_${part} PROPERTIES TIMEOUT 1800 LABELS ${label}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${parts};GTEST_SHARD_INDEX=${part};GTEST_BRIEF=1")
  endforeach()
endfunction()

# Everything that a test needs, and the same for the groups of the distributed layer and the programs, which
# the thread sanitizer runs.
add_custom_target(weft_tests)
add_custom_target(weft_distributed_tests)

include(cmake/simt.cmake)
include(cmake/simt_libraries.cmake)
include(cmake/simt_programs.cmake)
# The maker of certificates, for the tests of three groups.
if(TARGET OpenSSL::Crypto AND WEFT_BUILD_EXAMPLES AND WEFT_HAVE_DISTRIBUTED)
  add_library(weft_test_certificates OBJECT ${PROJECT_SOURCE_DIR}/examples/weft-certs/certificates.cpp)
  weft_warnings(weft_test_certificates)
  target_compile_options(weft_test_certificates PRIVATE ${test_level})
  target_include_directories(weft_test_certificates PUBLIC ${PROJECT_SOURCE_DIR}/examples)
  target_compile_definitions(weft_test_certificates INTERFACE WEFT_TEST_CERTIFICATES)
  target_link_libraries(weft_test_certificates PUBLIC weft_distributed OpenSSL::Crypto)
endif()
file(GLOB groups CONFIGURE_DEPENDS LIST_DIRECTORIES true ${tests}/*)
foreach(folder ${groups})
  get_filename_component(group ${folder} NAME)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cpp)
  if(group MATCHES "^(simt|cuda)$")  # the same tests on the emulated device and on the machine's
    file(GLOB shared CONFIGURE_DEPENDS ${tests}/cuda/shared/*.cpp)
    list(APPEND sources ${shared})
  endif()
  if(group STREQUAL "simt_libraries")
    list(APPEND sources ${tests}/cuda/matmul_test.cpp ${tests}/cuda/recurrent_test.cpp
      ${tests}/cuda/shared/language_model_test.cpp ${tests}/simt/matmul_test.cpp ${tests}/simt/rnn_test.cpp)
  endif()
  if(NOT sources OR group MATCHES "^(support|plugin|no_lane|cudnn_plans)$"
     OR (group STREQUAL "cuda" AND NOT WEFT_HAVE_CUDA))
    continue()
  endif()
  if(group STREQUAL "autograd")  # the rows of the op table are compiled once, for the tests and for bench_ops
    set(rows ${sources})
    list(FILTER rows INCLUDE REGEX "/op_table_[a-z]+\\.cpp$")
    list(FILTER rows EXCLUDE REGEX "/op_table_test\\.cpp$")
    list(REMOVE_ITEM sources ${rows})
    add_library(weft_op_rows OBJECT ${rows})
    weft_warnings(weft_op_rows)
    target_compile_options(weft_op_rows PRIVATE ${computing_level})
    target_include_directories(weft_op_rows PRIVATE ${tests})
    target_link_libraries(weft_op_rows PUBLIC weft_core)
    weft_unity(weft_op_rows SIZE 6)
    weft_test_headers(weft_op_rows computing)
  endif()
  if(group MATCHES "^(simt_(distributed|collectives)|inspection)$" AND NOT TARGET weft_examples_common)
    list(FILTER sources EXCLUDE REGEX "/(rnn|program)_test\\.cpp$")
  endif()
  if(group STREQUAL "transport" AND NOT WEFT_LANE)
    message(STATUS "weft: tests of the same-host lane left out, WEFT_LANE is OFF")
    list(FILTER sources EXCLUDE REGEX "/(lane|segments|shared_memory)_test\\.cpp$")
  endif()
  if(group MATCHES "^simt(_libraries)?$" AND NOT WEFT_HAVE_DISTRIBUTED_SIM)
    # Its threads are the simulation's fibers.
    continue()
  endif()
  file(GLOB headers CONFIGURE_DEPENDS ${folder}/*.h)
  if(group STREQUAL "programs")  # with the learner of the example `cartpole`
    list(APPEND sources ${PROJECT_SOURCE_DIR}/examples/cartpole/agent.cpp)
  endif()
  weft_uses(distributed distributed ${sources} ${headers})
  set(kind core)
  if(group STREQUAL "simt" AND WEFT_UNITY AND WEFT_SIMT_WATCH)
    set(kind simt)
    weft_make_test_headers(simt ${test_level} ${WEFT_SIMT_WATCH})
  elseif(distributed)
    set(kind distributed)
  elseif(group STREQUAL "kernels")
    set(kind computing)
  endif()
  if(distributed AND NOT WEFT_HAVE_DISTRIBUTED_SIM)  # their support simulates a group
    continue()
  endif()
  if(group STREQUAL "simt_libraries" AND NOT TARGET weft_test_cudnn)
    continue()
  endif()
  weft_program(test_${group} weft_test_support ${sources})
  if(NOT TARGET test_${group})
    continue()
  endif()
  if(group STREQUAL "simt_libraries")  # most of its names are those of one library
    weft_simt_unit(layers ${folder} cublaslt_test dropout_memory_test layer_test missing_test use_cudnn)
    weft_simt_unit(stacks ${folder} flat_parameters_test flat_test op_table_test stack_test)
    weft_unity(test_simt_libraries GROUPS_ONLY)
  elseif(NOT group STREQUAL "cuda")
    list(LENGTH sources size)
    if(size GREATER 24)
      set(size 20)
    elseif(size GREATER 12)
      set(size 10)
    endif()
    weft_unity(test_${group} SIZE ${size})
  endif()
  if(group STREQUAL "simt_distributed")
    target_link_libraries(test_simt_distributed PRIVATE weft_simt weft_simt_plain)
    if(TARGET rnn_emulated)
      target_link_libraries(test_simt_distributed PRIVATE weft_rnn_parts)
      target_include_directories(test_simt_distributed PRIVATE ${PROJECT_SOURCE_DIR})
      add_dependencies(test_simt_distributed
        rnn rnn_emulated hello_cuda hello_cuda_emulated bench_gpu_emulated)
    endif()
  endif()
  if(group STREQUAL "simt_collectives")
    target_link_libraries(test_simt_collectives PRIVATE weft_simt weft_simt_plain weft_simt_nccl)
    target_compile_definitions(test_simt_collectives PRIVATE
      WEFT_TEST_NCCL="$<TARGET_FILE:weft_test_nccl>")
    set_target_properties(test_simt_collectives PROPERTIES ENABLE_EXPORTS ON)
    add_dependencies(test_simt_collectives weft_test_nccl)
    if(TARGET data_parallel_emulated)
      add_dependencies(test_simt_collectives data_parallel_emulated hybrid_emulated)
    endif()
  endif()
  if(group STREQUAL "programs")
    target_include_directories(test_programs PRIVATE ${PROJECT_SOURCE_DIR})
  endif()
  if(group STREQUAL "inspection")  # the clients that protoc made
    target_include_directories(test_inspection SYSTEM PRIVATE ${WEFT_PROTO_DIR})
    target_link_libraries(test_inspection PRIVATE weft::grpc_reflection)
    if(TARGET weft_examples_common)
      add_dependencies(test_inspection cartpole my_add)
    endif()
  endif()
  if(group MATCHES "^(transport|programs|inspection)$" AND TARGET weft_test_certificates)
    target_link_libraries(test_${group} PRIVATE weft_test_certificates)
    if(group STREQUAL "transport" AND TARGET OpenSSL::SSL)  # a client of TLS that is none of weft's
      target_compile_definitions(test_transport PRIVATE WEFT_TEST_TLS)
      target_link_libraries(test_transport PRIVATE OpenSSL::SSL)
    endif()
  endif()
  if(group STREQUAL "kernels")  # MKL is opened as a file of its own
    add_library(weft_test_mkl MODULE ${tests}/support/libraries/mkl/mkl.cpp)
    weft_warnings(weft_test_mkl)
    target_compile_options(weft_test_mkl PRIVATE -O2)
    target_compile_definitions(test_kernels PRIVATE WEFT_TEST_MKL="$<TARGET_FILE:weft_test_mkl>")
    target_link_libraries(test_kernels PRIVATE ${CMAKE_DL_LIBS})
    add_dependencies(test_kernels weft_test_mkl)
    add_test(NAME Mkl.products_pass_the_tests_of_every_engine COMMAND test_kernels --gtest_filter=Gemm.*)
    set_tests_properties(Mkl.products_pass_the_tests_of_every_engine PROPERTIES TIMEOUT ${test_seconds}
      LABELS kernels ENVIRONMENT "WEFT_MKL_LIBRARY=$<TARGET_FILE:weft_test_mkl>")
  endif()
  if(group STREQUAL "simt")
    target_link_libraries(test_simt PRIVATE weft_simt weft_simt_plain weft_op_rows)
  endif()
  if(group STREQUAL "simt_libraries")
    target_link_libraries(test_simt_libraries PRIVATE
      weft_simt weft_simt_libraries weft_op_rows ${CMAKE_DL_LIBS})
    target_compile_definitions(test_simt_libraries PRIVATE
      WEFT_TEST_CUBLASLT="$<TARGET_FILE:weft_test_cublaslt>" WEFT_TEST_CUDNN="$<TARGET_FILE:weft_test_cudnn>")
    # The emulated libraries call back.
    set_target_properties(test_simt_libraries PROPERTIES ENABLE_EXPORTS ON)
    add_dependencies(test_simt_libraries weft_test_cublaslt weft_test_cudnn)
  endif()
  if(WEFT_HAVE_CUDA AND group MATCHES "^(nn|optim)$")
    # Their golden tests run on the device of WEFT_TEST_DEVICE.
    weft_use_cuda(test_${group})
  endif()
  if(group STREQUAL "cuda")
    # With a kernel of its own, as a user's program would have: it takes the compiler's options from
    # weft::cuda.
    add_library(weft_user_rule OBJECT ${tests}/cuda/user_rule.cu)
    target_include_directories(weft_user_rule PRIVATE ${tests})
    target_link_libraries(weft_user_rule PUBLIC weft_cuda)
    target_compile_options(weft_user_rule PRIVATE $<$<BOOL:${WEFT_WERROR}>:-Werror=all-warnings>)
    target_link_libraries(test_cuda PRIVATE weft_user_rule)
    target_link_libraries(test_cuda PRIVATE weft_op_rows)
  endif()
  if(group STREQUAL "autograd")
    target_link_libraries(test_autograd PRIVATE weft_op_rows)
    if(TARGET bench_ops)
      target_link_libraries(bench_ops PRIVATE weft_op_rows weft_test_support_core_files)
      target_include_directories(bench_ops PRIVATE ${tests})
      target_compile_definitions(bench_ops PRIVATE WEFT_BENCH_OP_ROWS)
    endif()
  endif()
  target_compile_definitions(test_${group} PRIVATE
    WEFT_TEST_DATA_DIR="${tests}/golden" WEFT_PROGRAM_DIR="${program_dir}")
  if(group STREQUAL "programs" AND TARGET weft_examples)
    add_dependencies(test_${group} weft_examples)
  endif()
  if(group STREQUAL "transport" AND TARGET weft-store)
    add_dependencies(test_transport weft-store)
  endif()
  add_dependencies(weft_tests test_${group})
  set(label ${group})
  if(group STREQUAL "programs" AND WEFT_HAVE_DISTRIBUTED)
    # It includes nothing of the layer, but most programs that it runs do.
    set(distributed ON)
  endif()
  set(level ${test_level})
  if(group STREQUAL "kernels")
    set(level ${computing_level})
  elseif(group STREQUAL "simt")  # it has kernels of its own
    list(APPEND level ${WEFT_SIMT_WATCH})
  endif()
  target_compile_options(test_${group} PRIVATE ${level})
  if(NOT group STREQUAL "cuda")
    weft_test_headers(test_${group} ${kind})
  endif()
  # One thread runs all of the emulation and of the explorer: the thread sanitizer has nothing to find there.
  if(distributed AND NOT group MATCHES "^simt"
     AND NOT (group STREQUAL "explore" AND CMAKE_BUILD_TYPE STREQUAL "Tsan"))
    add_dependencies(weft_distributed_tests test_${group})
    if(NOT group STREQUAL "distributed")
      # `ctest -L` takes a pattern: both `distributed` and the group's name find it.
      set(label distributed-${group})
    endif()
  endif()
  set(discovered DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT ${test_seconds})
  if(group MATCHES "^(programs|rpc)$")
    # The runs of full size: `ctest -LE slow` leaves them out, as the sanitizers do.
    gtest_discover_tests(test_${group} TEST_FILTER "*Slow.*" TEST_LIST test_${group}_slow ${discovered}
      PROPERTIES TIMEOUT 300 LABELS slow-${label})
    list(APPEND discovered TEST_FILTER "-*Slow.*")
  endif()
  if(group STREQUAL "simt_libraries")
    list(APPEND discovered TEST_PREFIX Emulated. TEST_FILTER "-CublasLtMissing.*:CudnnMissing.*")
  endif()
  set(properties TIMEOUT ${test_seconds} LABELS ${label})
  if(group STREQUAL "cuda")
    # cuDNN's recurrent layers repeat their bits with it.
    list(APPEND properties ENVIRONMENT CUBLAS_WORKSPACE_CONFIG=:4096:2)
  endif()
  if(group STREQUAL "simt" AND WEFT_TEST_PARTS)
    # Only its one run as a whole follows, below: the sanitizers' builds have it in the usual order.
  elseif(in_parts AND NOT group MATCHES "^(programs|simt_|cuda)")  # these start processes or need fresh ones
    weft_parts(test_${group} ${label})
  else()
    gtest_discover_tests(test_${group} ${discovered} PROPERTIES ${properties})
  endif()
endforeach()

# Files of the core's groups with threads, for the thread sanitizer: whole groups take minutes to compile.
if(CMAKE_BUILD_TYPE STREQUAL "Tsan")
  set(sources kernels/pool kernels/allocator autograd/parameter_lock autograd/compile autograd/compile_threads
    autograd/engine autograd/function autograd/loss_threads autograd/pass nn/packs optim/catch_up
    optim/optimizer)
  list(TRANSFORM sources REPLACE "(.+)" "${tests}/\\1_test.cpp")
  weft_program(test_threads weft_test_support ${sources})
  target_compile_options(test_threads PRIVATE ${test_level})
  target_compile_definitions(test_threads PRIVATE WEFT_TEST_DATA_DIR="${tests}/golden")
  add_dependencies(weft_distributed_tests test_threads)
  add_test(NAME test_threads COMMAND test_threads --gtest_brief=1)
  set_tests_properties(test_threads PROPERTIES TIMEOUT ${test_seconds} LABELS threads)
endif()

include(cmake/plugin_test.cmake)
include(cmake/cudnn_plans.cmake)
if(WEFT_HAVE_DISTRIBUTED AND NOT CMAKE_BUILD_TYPE MATCHES "^(Asan|Tsan)$")
  include(cmake/no_lane.cmake)
endif()
if(WEFT_FUZZ AND WEFT_HAVE_DISTRIBUTED_SIM)
  include(cmake/fuzz.cmake)
endif()
include(cmake/compare.cmake)
if(WEFT_HAVE_CUDA AND TARGET hello_cuda)
  add_test(NAME CudaLibrary.a_program_with_the_backend_runs_on_any_machine COMMAND hello_cuda)
  set_tests_properties(CudaLibrary.a_program_with_the_backend_runs_on_any_machine
    PROPERTIES TIMEOUT 60 LABELS cuda)
  add_test(NAME CudaLibrary.programs_need_no_file_of_the_toolkit
    COMMAND ${CMAKE_COMMAND} -DREADELF=${CMAKE_READELF}
            "-DFILES=$<TARGET_FILE:hello_cuda>;$<TARGET_FILE:weft_plugin_cuda>"
            -P ${PROJECT_SOURCE_DIR}/cmake/needed_test.cmake)
  set_tests_properties(CudaLibrary.programs_need_no_file_of_the_toolkit PROPERTIES TIMEOUT 60 LABELS cuda
    SKIP_REGULAR_EXPRESSION "readelf was not found")
endif()

if(TARGET test_simt)
  # All of its tests once more: threads and blocks in a random order, over other rubbish. The device has one
  # processor, so grids are smaller. A missing barrier or an unset number would change the results, and races
  # in device memory are faults too. No kernel may be left that nothing launched.
  add_test(NAME SimtOpTable.every_kernel_holds_in_random_order_over_other_rubbish_on_a_small_device
    COMMAND test_simt --gtest_brief=1)
  set_tests_properties(SimtOpTable.every_kernel_holds_in_random_order_over_other_rubbish_on_a_small_device
    PROPERTIES TIMEOUT 1200 LABELS "simt;slow" COST 1000  # it starts first, beside all the others
    ENVIRONMENT
    "WEFT_SIMT_ORDER=shuffled;WEFT_SIMT_POISON=0x7F;WEFT_SIMT_PROCESSORS=1;WEFT_SIMT_RACES=all")
endif()

if(TARGET test_simt_libraries)
  add_test(NAME CudnnMissing.the_own_cell_does_the_work
    COMMAND test_simt_libraries --gtest_filter=CudnnMissing.*)
  set_tests_properties(CudnnMissing.the_own_cell_does_the_work
    PROPERTIES TIMEOUT ${test_seconds} LABELS simt_libraries ENVIRONMENT "WEFT_CUDNN_LIBRARY=libmissing.so")
  add_test(NAME CublasLtMissing.all_but_floating_products_goes_on
    COMMAND test_simt_libraries --gtest_filter=CublasLtMissing.*)
  add_test(NAME CublasLtMissing.a_file_without_its_functions_is_refused
    COMMAND test_simt_libraries --gtest_filter=CublasLtMissing.*)
  set_tests_properties(CublasLtMissing.all_but_floating_products_goes_on
    PROPERTIES TIMEOUT ${test_seconds} LABELS simt_libraries
    ENVIRONMENT "WEFT_CUBLASLT_LIBRARY=libmissing.so")
  set_tests_properties(CublasLtMissing.a_file_without_its_functions_is_refused
    PROPERTIES TIMEOUT ${test_seconds} LABELS simt_libraries
    ENVIRONMENT "WEFT_CUBLASLT_LIBRARY=$<TARGET_FILE:weft_test_cudnn>")
endif()

add_test(NAME House.the_device_check_tells_skips_and_failures
  COMMAND ${PROJECT_SOURCE_DIR}/tests/support/gpu_check/test.sh)
set_tests_properties(House.the_device_check_tells_skips_and_failures
  PROPERTIES TIMEOUT 120 LABELS "house;slow")
add_test(NAME House.the_whole_check_counts_tests_that_failed_once
  COMMAND ${PROJECT_SOURCE_DIR}/tests/support/ci/test.sh)
set_tests_properties(House.the_whole_check_counts_tests_that_failed_once
  PROPERTIES TIMEOUT 120 LABELS "house;slow")
find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_FOUND AND EXISTS ${PROJECT_SOURCE_DIR}/scripts/check_house.py)
  add_test(NAME House.rules_hold COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_house.py)
  set_tests_properties(House.rules_hold PROPERTIES TIMEOUT 60 LABELS house)
  function(weft_house_script claim script)
    add_test(NAME House.${claim} COMMAND ${Python3_EXECUTABLE} ${tests}/support/house/${script})
    set_tests_properties(House.${claim} PROPERTIES TIMEOUT 60 LABELS house)
  endfunction()
  weft_house_script(planted_faults_are_refused test.py)
  weft_house_script(goals_that_are_missed_have_a_reason goals_test.py)
  weft_house_script(products_behind_onednn_are_named engines_test.py)
  weft_house_script(layers_that_add_instructions_are_refused instructions_test.py)
  add_test(NAME House.public_headers_compile_alone
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_headers.py
            --compiler ${CMAKE_CXX_COMPILER} --include ${PROJECT_BINARY_DIR}/include
            $<$<BOOL:${WEFT_HAVE_CUDA}>:--nvcc=${CMAKE_CUDA_COMPILER}>
            $<$<BOOL:${WEFT_HAVE_DISTRIBUTED}>:--distributed>
    COMMAND_EXPAND_LISTS)
  set_tests_properties(House.public_headers_compile_alone PROPERTIES TIMEOUT 600 LABELS "house;slow")
  add_test(NAME House.mistakes_are_named
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_mistakes.py
            --compiler ${CMAKE_CXX_COMPILER} --include ${PROJECT_BINARY_DIR}/include
            $<$<BOOL:${WEFT_HAVE_DISTRIBUTED}>:--distributed>
    COMMAND_EXPAND_LISTS)
  set_tests_properties(House.mistakes_are_named PROPERTIES TIMEOUT 300 LABELS "house;slow")
  # The blocks of C++ in README.md and docs/*.md, built when the test asks for them.
  set(layers core)
  set(distributed_pages)
  if(WEFT_HAVE_DISTRIBUTED)
    list(APPEND layers distributed)
    set(distributed_pages --distributed)
  endif()
  if(WEFT_HAVE_INSPECTION)
    list(APPEND distributed_pages --inspection)
  endif()
  set(snippets ${PROJECT_BINARY_DIR}/generated/snippets)
  list(TRANSFORM layers REPLACE "(.+)" "${snippets}/\\1.cpp" OUTPUT_VARIABLE sources)
  file(GLOB pages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/*.md)
  add_custom_command(OUTPUT ${sources}
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_snippets.py
            --write ${snippets} ${distributed_pages}
    DEPENDS ${PROJECT_SOURCE_DIR}/scripts/check_snippets.py ${PROJECT_SOURCE_DIR}/README.md ${pages})
  add_custom_target(weft_snippet_sources DEPENDS ${sources})
  add_custom_target(weft_snippets)
  set(programs)
  foreach(layer ${layers})
    add_executable(weft_snippets_${layer} EXCLUDE_FROM_ALL ${snippets}/${layer}.cpp)
    add_dependencies(weft_snippets_${layer} weft_snippet_sources)
    target_link_libraries(weft_snippets_${layer} PRIVATE weft_${layer})
    target_compile_options(weft_snippets_${layer} PRIVATE -O0 -w)
    set_target_properties(weft_snippets_${layer} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${snippets})
    add_dependencies(weft_snippets weft_snippets_${layer})
    list(APPEND programs $<TARGET_FILE:weft_snippets_${layer}>)
  endforeach()
  if(WEFT_HAVE_INSPECTION)
    target_link_libraries(weft_snippets_distributed PRIVATE weft_distributed_inspection)
  endif()
  add_test(NAME House.snippets_compile
    COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target weft_snippets)
  add_test(NAME House.snippets_run
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_snippets.py --run ${programs})
  set_tests_properties(House.snippets_compile PROPERTIES TIMEOUT 600 LABELS "house;slow"
    FIXTURES_SETUP snippets)
  set_tests_properties(House.snippets_run PROPERTIES TIMEOUT 600 LABELS "house;slow"
    FIXTURES_REQUIRED snippets)
  if(TARGET bench_hot_paths AND CMAKE_BUILD_TYPE STREQUAL "Release")
    add_test(NAME House.hot_paths_take_no_more_instructions
      COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_instructions.py
              --program $<TARGET_FILE:bench_hot_paths>)
    set_tests_properties(House.hot_paths_take_no_more_instructions
      PROPERTIES TIMEOUT 120 SKIP_RETURN_CODE 77 LABELS "house;slow")
    add_test(NAME House.a_path_that_takes_more_instructions_is_refused
      COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_instructions.py
              --program $<TARGET_FILE:bench_hot_paths> --path add --slower 1.05)
    set_tests_properties(House.a_path_that_takes_more_instructions_is_refused
      PROPERTIES TIMEOUT 120 SKIP_RETURN_CODE 77 LABELS "house;slow" WILL_FAIL ON)
    add_dependencies(weft_tests bench_hot_paths)
  endif()
  # The machine code of the kernels against the table, and kernels that break it.
  if(WEFT_HAVE_CUDA AND TARGET test_cuda AND "${CMAKE_CUDA_ARCHITECTURES}" MATCHES "90")
    add_library(weft_planted_kernels OBJECT ${tests}/support/kernels/planted.cu)
    set_target_properties(weft_planted_kernels PROPERTIES CUDA_ARCHITECTURES 90-real)
    add_dependencies(test_cuda weft_planted_kernels)
    add_test(NAME CudaKernels.machine_code_is_within_the_table
      COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_kernels.py
              "$<FILTER:$<TARGET_OBJECTS:weft_cuda_objects>,INCLUDE,[.]cu[.]o$>"
      COMMAND_EXPAND_LISTS)
    add_test(NAME CudaKernels.planted_faults_are_named
      COMMAND ${Python3_EXECUTABLE} ${tests}/support/kernels/test.py
              $<TARGET_OBJECTS:weft_planted_kernels>)
    set_tests_properties(CudaKernels.machine_code_is_within_the_table CudaKernels.planted_faults_are_named
      PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77 LABELS cuda)
  endif()
  add_test(NAME House.setup_installs_what_the_build_and_the_package_files_name
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_packages.py
            --generated ${PROJECT_BINARY_DIR}/generated)
  set_tests_properties(House.setup_installs_what_the_build_and_the_package_files_name
    PROPERTIES TIMEOUT 60 LABELS house)
endif()

# Projects that use weft, with each generator whose program is here.
find_program(WEFT_MAKE_PROGRAM make)
find_program(WEFT_NINJA_PROGRAM ninja)
mark_as_advanced(WEFT_MAKE_PROGRAM WEFT_NINJA_PROGRAM)
foreach(pair "make:Unix Makefiles" ninja:Ninja)
  string(REGEX MATCH "^[^:]+" tool ${pair})
  string(REGEX REPLACE "^[^:]+:" "" generator ${pair})
  string(TOUPPER ${tool} upper)
  if(NOT WEFT_${upper}_PROGRAM)
    continue()
  endif()
  set(consumer ${CMAKE_COMMAND} -DBUILD=${PROJECT_BINARY_DIR}
    -DSOURCE=${PROJECT_SOURCE_DIR}/examples/find_package
    -DCXX=${CMAKE_CXX_COMPILER} "-DGENERATOR=${generator}")
  if(WEFT_INSTALL AND WEFT_BUILD_EXAMPLES)
    add_test(NAME Install.find_package_project_builds_and_runs_with_${tool}
      COMMAND ${consumer} -P ${PROJECT_SOURCE_DIR}/cmake/consumer_test.cmake)
    set_tests_properties(Install.find_package_project_builds_and_runs_with_${tool}
      PROPERTIES TIMEOUT 300 LABELS slow)
  endif()
  if(PROJECT_IS_TOP_LEVEL AND tool STREQUAL "make")
    string(TOUPPER "CMAKE_CXX_FLAGS_${CMAKE_BUILD_TYPE}" flags)
    set(options "-DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE}" "-D${flags}=${${flags}}"
      -DWEFT_CUDA=OFF -DWEFT_BUILD_TESTS=ON)
    foreach(option UNITY WERROR CCACHE)
      list(APPEND options -DWEFT_${option}=${WEFT_${option}})
    endforeach()
    add_test(NAME Install.add_subdirectory_project_builds_and_runs_with_make
      COMMAND ${consumer} -DWEFT=${PROJECT_SOURCE_DIR} "-DOPTIONS=${options}"
              -P ${PROJECT_SOURCE_DIR}/cmake/consumer_test.cmake)
    set_tests_properties(Install.add_subdirectory_project_builds_and_runs_with_make
      PROPERTIES TIMEOUT 900 LABELS slow)
  endif()
endforeach()
