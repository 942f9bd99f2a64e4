# tests/plugin: a program over core as a shared library, which opens CUDA libraries at run time. These are
# stand-ins of tests/plugin/stand_in, each a library of one function, and the real one where it is built.
# The shared libraries consist of the objects that the tree has anyway.
add_library(weft_plugin_core SHARED ${weft_core_objects} ${weft_cuda_loader})
if(weft_isa_targets)
  add_dependencies(weft_plugin_core ${weft_isa_targets})
endif()
set_target_properties(weft_plugin_core PROPERTIES LINKER_LANGUAGE CXX
  OUTPUT_NAME weft_core LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/plugin
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_include_directories(weft_plugin_core PUBLIC ${WEFT_INCLUDE_DIR})
target_link_libraries(weft_plugin_core PUBLIC Threads::Threads PRIVATE ${weft_core_libraries})
weft_warnings(weft_plugin_core)

file(GLOB sources CONFIGURE_DEPENDS ${tests}/plugin/*.cpp)
add_executable(test_plugin ${sources})
weft_warnings(test_plugin)
target_compile_options(test_plugin PRIVATE -O1)
target_compile_definitions(test_plugin PRIVATE WEFT_PLUGIN_DIR="${PROJECT_BINARY_DIR}/plugin")
target_link_libraries(test_plugin PRIVATE weft_plugin_core GTest::gtest GTest::gtest_main)
file(GLOB sources CONFIGURE_DEPENDS ${tests}/plugin/stand_in/*.cpp)
foreach(source ${sources})
  get_filename_component(name ${source} NAME_WE)
  add_library(weft_stand_in_${name} MODULE ${source})
  set_target_properties(weft_stand_in_${name} PROPERTIES PREFIX ""
    OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/plugin)
  weft_warnings(weft_stand_in_${name})
  target_link_libraries(weft_stand_in_${name} PRIVATE weft_plugin_core)
  add_dependencies(test_plugin weft_stand_in_${name})
endforeach()
if(WEFT_HAVE_CUDA)
  add_library(weft_plugin_cuda SHARED $<TARGET_OBJECTS:weft_cuda_objects>)
  set_target_properties(weft_plugin_cuda PROPERTIES LINKER_LANGUAGE CXX
    OUTPUT_NAME weft_cuda LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/plugin
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_link_libraries(weft_plugin_cuda PRIVATE weft_plugin_core ${weft_cuda_libraries})
  add_dependencies(test_plugin weft_plugin_cuda)
  target_compile_definitions(test_plugin PRIVATE WEFT_PLUGIN_CUDA)
endif()
add_dependencies(weft_tests test_plugin)
gtest_discover_tests(test_plugin DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT ${test_seconds}
  PROPERTIES TIMEOUT ${test_seconds} LABELS plugin)
