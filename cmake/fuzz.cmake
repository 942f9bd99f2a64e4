# The program `fuzz` of the option WEFT_FUZZ: the targets of tests/fuzz under libFuzzer, which comes with
# Clang. WEFT_FUZZ_TARGET in its environment names the target.
set(fuzz ${PROJECT_SOURCE_DIR}/tests/fuzz)
add_executable(fuzz ${fuzz}/entry.cpp ${fuzz}/live.cpp ${fuzz}/store.cpp ${fuzz}/targets.cpp)
weft_warnings(fuzz)
target_include_directories(fuzz PRIVATE ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(fuzz PRIVATE weft_distributed_sim weft_distributed weft_core)
target_link_options(fuzz PRIVATE -fsanitize=fuzzer)
