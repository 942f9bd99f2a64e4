# tests/no_lane: the distributed layer as WEFT_LANE=OFF builds it. All objects but those of the lane are the
# tree's, so in a build with the lane the program costs four sources and a link. There it runs tests of
# tests/transport too, for the transport over gRPC alone. The sanitizers leave it out.
file(GLOB sources CONFIGURE_DEPENDS ${tests}/no_lane/*.cpp)
if(WEFT_LANE)
  list(APPEND sources ${tests}/transport/grpc_test.cpp ${tests}/transport/polling_test.cpp)
endif()
add_executable(test_no_lane ${sources})
weft_warnings(test_no_lane)
target_compile_options(test_no_lane PRIVATE ${test_level})
target_include_directories(test_no_lane PRIVATE ${tests})
target_link_libraries(test_no_lane PRIVATE weft_floor_distributed weft_floor_distributed_no_lane weft_core
  GTest::gtest GTest::gtest_main)
weft_unity(test_no_lane)
add_dependencies(weft_tests test_no_lane)
if(in_parts)
  weft_parts(test_no_lane distributed-no_lane)
else()
  gtest_discover_tests(test_no_lane TEST_PREFIX Without. DISCOVERY_MODE PRE_TEST
    DISCOVERY_TIMEOUT ${test_seconds} PROPERTIES TIMEOUT ${test_seconds} LABELS distributed-no_lane)
endif()
