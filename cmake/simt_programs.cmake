# Example programs on emulated devices, and the models of `rnn` for test_simt_distributed.
if(TARGET weft_examples_common AND WEFT_HAVE_DISTRIBUTED_SIM)
  set(rnn ${PROJECT_SOURCE_DIR}/examples/rnn)
  add_library(weft_rnn_parts OBJECT
    ${rnn}/options.cpp ${rnn}/modules.cpp ${rnn}/local_model.cpp ${rnn}/split_model.cpp
    ${rnn}/replaceable_model.cpp)
  weft_warnings(weft_rnn_parts)
  target_compile_options(weft_rnn_parts PRIVATE ${test_level})
  target_link_libraries(weft_rnn_parts PUBLIC weft_examples_common_distributed weft_distributed)
  weft_program(rnn_emulated weft_examples_common ${rnn}/main.cpp ${rnn}/train.cpp
    ${tests}/support/simt/program/install.cpp)
  target_compile_options(rnn_emulated PRIVATE ${test_level})
  target_link_libraries(rnn_emulated PRIVATE weft_rnn_parts weft_simt weft_simt_plain)
  weft_unity(weft_rnn_parts)
  weft_unity(rnn_emulated)
  weft_test_headers(weft_rnn_parts distributed)
  weft_test_headers(rnn_emulated distributed)
  weft_program(hello_cuda_emulated weft_examples_common ${PROJECT_SOURCE_DIR}/examples/hello_cuda.cpp
    ${tests}/support/simt/program/install.cpp)
  target_compile_options(hello_cuda_emulated PRIVATE ${test_level})
  target_link_libraries(hello_cuda_emulated PRIVATE weft_simt weft_simt_plain)
  weft_unity(hello_cuda_emulated)
  weft_test_headers(hello_cuda_emulated core)
  # With devices whose gradients travel over the emulated NCCL, which calls back.
  foreach(program data_parallel hybrid)
    weft_program(${program}_emulated weft_examples_common ${PROJECT_SOURCE_DIR}/examples/${program}/main.cpp
      ${tests}/support/simt/program/install.cpp)
    target_compile_options(${program}_emulated PRIVATE ${test_level})
    target_link_libraries(${program}_emulated PRIVATE weft_simt weft_simt_plain weft_simt_nccl)
    set_target_properties(${program}_emulated PROPERTIES ENABLE_EXPORTS ON)
    weft_unity(${program}_emulated)
    weft_test_headers(${program}_emulated distributed)
  endforeach()
endif()
