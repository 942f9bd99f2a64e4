# compare_cases answers the cases of scripts/compare_torch.py, which compares every operation with PyTorch.
# The tests of its frames need Python alone. Builds with sanitizers leave it out: they run the same operations
# by the op table.
if(NOT CMAKE_BUILD_TYPE MATCHES "^(Dev|Release)$")
  return()
endif()
file(GLOB compare_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/compare/*.cpp)
weft_program(compare_cases weft_test_support ${compare_sources})
target_include_directories(compare_cases PRIVATE ${PROJECT_SOURCE_DIR}/tests)
target_compile_options(compare_cases PRIVATE ${test_level})
weft_unity(compare_cases)
weft_test_headers(compare_cases core)
add_dependencies(weft_tests compare_cases)
find_package(Python3 QUIET COMPONENTS Interpreter)
if(Python3_FOUND)
  foreach(suite Frames Malformed Running)
    string(TOLOWER ${suite} claim)
    add_test(NAME Compare.${claim}_hold
      COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/support/compare/frames_test.py
        $<TARGET_FILE:compare_cases> ${suite})
    set_tests_properties(Compare.${claim}_hold PROPERTIES TIMEOUT ${test_seconds} LABELS compare)
  endforeach()
  add_test(NAME Compare.no_wrong_number_hides_behind_an_infinity
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/support/compare/rules_test.py)
  set_tests_properties(Compare.no_wrong_number_hides_behind_an_infinity
    PROPERTIES TIMEOUT ${test_seconds} SKIP_RETURN_CODE 77 LABELS compare)
endif()
