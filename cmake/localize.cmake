# Run as a script: links the objects of one instruction set into one and makes the inline functions in it
# local. So no other object can be given a copy that was compiled for a newer processor.
#   cmake -DLINKER= -DNM= -DOBJCOPY= -DOUT= -P localize.cmake -- <objects>
set(objects)
set(after_dashes OFF)
foreach(index RANGE 1 ${CMAKE_ARGC})
  if(after_dashes AND index LESS CMAKE_ARGC)
    list(APPEND objects ${CMAKE_ARGV${index}})
  elseif("${CMAKE_ARGV${index}}" STREQUAL "--")
    set(after_dashes ON)
  endif()
endforeach()

# Grouped sections stand for "keep one copy in the whole program"; they are dissolved here, within this object
# only.
execute_process(COMMAND ${LINKER} -r --force-group-allocation -o ${OUT}.linked ${objects}
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${NM} --defined-only --format=posix ${OUT}.linked
  OUTPUT_VARIABLE table COMMAND_ERROR_IS_FATAL ANY)
# "<name> W ..." is a weak function. Weak data (V, u), such as the type information of exceptions, stays
# shared.
string(REGEX MATCHALL "[^\n ]+ W [^\n]*" rows "${table}")
set(names "")
foreach(row ${rows})
  string(REGEX REPLACE " W .*" "" name "${row}")
  string(APPEND names "${name}\n")
endforeach()
file(WRITE ${OUT}.local "${names}")
execute_process(COMMAND ${OBJCOPY} --localize-symbols=${OUT}.local ${OUT}.linked ${OUT}
  COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE ${OUT}.linked)
