module attributes {dhlo.names = {s15 = "k", s77 = "n"}, dhlo.symbols = {s15 = [0, 4096], s77 = [3, 4096]}} {
  func.func @main(%arg0: tensor<?x8xf32, #dhlo.shape<["s77", "8"]>> {dhlo.name = "x"}, %arg1: tensor<?xi64, #dhlo.shape<["s15"]>> {dhlo.name = "i"}, %arg2: tensor<?x8xf32, #dhlo.shape<["s15", "8"]>> {dhlo.name = "w"}) -> (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>, tensor<?x8xf32, #dhlo.shape<["s77 - 1", "8"]>>) {
    "dhlo.check_type"(%arg0) {input = 0 : i64, name_ = "x"} : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>) -> ()
    "dhlo.check_type"(%arg1) {input = 1 : i64, name_ = "i"} : (tensor<?xi64, #dhlo.shape<["s15"]>>) -> ()
    "dhlo.check_type"(%arg2) {input = 2 : i64, name_ = "w"} : (tensor<?x8xf32, #dhlo.shape<["s15", "8"]>>) -> ()
    "dhlo.size"(%arg0) {dim = 0 : i64, symbol = "dim0_0"} : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>) -> ()
    "dhlo.size"(%arg0) {dim = 1 : i64, symbol = "dim0_1"} : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>) -> ()
    "dhlo.size"(%arg1) {dim = 0 : i64, symbol = "dim1_0"} : (tensor<?xi64, #dhlo.shape<["s15"]>>) -> ()
    "dhlo.size"(%arg2) {dim = 0 : i64, symbol = "dim2_0"} : (tensor<?x8xf32, #dhlo.shape<["s15", "8"]>>) -> ()
    "dhlo.size"(%arg2) {dim = 1 : i64, symbol = "dim2_1"} : (tensor<?x8xf32, #dhlo.shape<["s15", "8"]>>) -> ()
    "dhlo.solve"() {unknown = "s77", value = "dim0_0"} : () -> ()
    "dhlo.solve"() {unknown = "s15", value = "dim1_0"} : () -> ()
    "dhlo.check"() {expected = "3", got = "s77", how = "min", input = 0 : i64, text = "'x' dim 0 (n) must be at least 3"} : () -> ()
    "dhlo.check"() {expected = "4096", got = "s77", how = "max", input = 0 : i64, text = "'x' dim 0 (n) must be at most 4096"} : () -> ()
    "dhlo.check"() {expected = "4096", got = "s15", how = "max", input = 1 : i64, text = "'i' dim 0 (k) must be at most 4096"} : () -> ()
    "dhlo.check"() {expected = "8", got = "dim0_1", how = "equal", input = 0 : i64, text = "'x' dim 1 must be 8"} : () -> ()
    "dhlo.check"() {expected = "s15", got = "dim2_0", how = "equal", input = 2 : i64, text = "'w' dim 0 must be k, where k = 'i' dim 0"} : () -> ()
    "dhlo.check"() {expected = "8", got = "dim2_1", how = "equal", input = 2 : i64, text = "'w' dim 1 must be 8"} : () -> ()
    "dhlo.plan"() : () -> ()
    "dhlo.stage"(%arg0) {free = [], input = 0 : i64} : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>) -> ()
    "dhlo.stage"(%arg1) {free = [], input = 1 : i64} : (tensor<?xi64, #dhlo.shape<["s15"]>>) -> ()
    "dhlo.stage"(%arg2) {free = [], input = 2 : i64} : (tensor<?x8xf32, #dhlo.shape<["s15", "8"]>>) -> ()
    "dhlo.alloc"() {buffer = 0 : i64, bytes = "64*(floordiv(32*s77 + 63, 64))", conditional = false, first = 1 : i64, last = 2 : i64, name_ = "dhlo.group1.0", segment = 0 : i64} : () -> ()
    "dhlo.alloc"() {buffer = 1 : i64, bytes = "64*(floordiv(20*s77 + 63, 64))", conditional = false, first = 3 : i64, last = 4 : i64, name_ = "dhlo.group3.0", segment = 0 : i64} : () -> ()
    "dhlo.alloc"() {buffer = 2 : i64, bytes = "64*(floordiv(20*s77 + 63, 64))", conditional = false, first = 3 : i64, last = 4 : i64, name_ = "dhlo.group3.1", segment = 0 : i64} : () -> ()
    "dhlo.alloc"() {buffer = 3 : i64, bytes = "64*(floordiv(20*s77 + 63, 64))", conditional = false, first = 4 : i64, last = 5 : i64, name_ = "dhlo.group4.0", segment = 0 : i64} : () -> ()
    "dhlo.alloc"() {buffer = 4 : i64, bytes = "64*(floordiv(20*s77 + 63, 64))", conditional = false, first = 4 : i64, last = 5 : i64, name_ = "dhlo.group4.1", segment = 0 : i64} : () -> ()
    "dhlo.alloc"() {buffer = 5 : i64, bytes = "64*(floordiv(8*s77 + 16*ite(Eq(mod((mod((mod((mod((mod((mod((mod((mod(200560490130, s77))*(mod(584803025179, s77)), s77))**2, s77))**2, s77))**2, s77))**2, s77))**2, s77))**2, s77), 0), s77, 4*s77) + 583, 64))", conditional = false, first = 4 : i64, last = 4 : i64, name_ = "workspace4", segment = 0 : i64} : () -> ()
    "dhlo.arrange"() {below = [[], [], [5], [1], [2], [3]], order = [0, 5, 1, 2, 3, 4], segment = 0 : i64} : () -> ()
    "dhlo.arena"() {segment = 0 : i64} : () -> ()
    %0 = "dhlo.weight"() {name_ = "m"} : () -> tensor<8x5xf32>
    %1 = "dhlo.group"() ({
      %28 = "dhlo.scatter"(%arg0, %arg1, %arg2) {at = 0 : i64, dims = [0], how = "add", wrap = false} : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>, tensor<?xi64, #dhlo.shape<["s15"]>>, tensor<?x8xf32, #dhlo.shape<["s15", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>
      "dhlo.yield"(%28) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>) -> ()
    }) {anchor = "opaque", family = "write", memory = [{buffer = 0 : i64}], number = 0 : i64, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>
    %2 = "dhlo.address"(%arg0) {offset = "0"} : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>) -> tensor<i64>
    %3 = "dhlo.address"(%1) {offset = "0"} : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>) -> tensor<i64>
    "dhlo.launch"(%2, %3) {arguments = [{operand = 0 : i64}, {operand = 1 : i64}, {size = "32*s77"}], count = "floordiv(32*s77 + 16383, 16384)", kernel = "copy_flat", scratch = "0", work = "16384"} : (tensor<i64>, tensor<i64>) -> ()
    %4 = "dhlo.address"(%arg1) {offset = "0"} : (tensor<?xi64, #dhlo.shape<["s15"]>>) -> tensor<i64>
    %5 = "dhlo.address"(%arg2) {offset = "0"} : (tensor<?x8xf32, #dhlo.shape<["s15", "8"]>>) -> tensor<i64>
    "dhlo.launch"(%4, %5, %3) {arguments = [{size = "s15"}, {operand = 0 : i64}, {size = "s77"}, {errors = 0 : i64}, {operand = 1 : i64}, {operand = 2 : i64}], count = "1", kernel = "scatter_kernel", scratch = "0", work = "16*s15"} : (tensor<i64>, tensor<i64>, tensor<i64>) -> ()
    %6 = "dhlo.group"() ({
      %28 = "dhlo.matmul"(%1, %0) : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>, tensor<8x5xf32>) -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
      "dhlo.yield"(%28) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> ()
    }) {anchor = "matmul", family = "gemm", kernels = ["matmul_f32_narrow", "matmul_f32_rows_narrow"], memory = [{outputs = [0]}], number = 1 : i64, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
    %7:2 = "dhlo.group"() ({
      %28:2 = "dhlo.rfft"(%arg0) {dim = 1 : i64} : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>) -> (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>)
      "dhlo.yield"(%28#0, %28#1) {operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> ()
    }) {anchor = "opaque", family = "fft", memory = [{buffer = 1 : i64}, {buffer = 2 : i64}], number = 2 : i64, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>)
    %8 = "dhlo.address"(%7#0) {offset = "0"} : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<i64>
    %9 = "dhlo.address"(%7#1) {offset = "0"} : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<i64>
    %10 = "dhlo.address"(%arg0) {offset = "0"} : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>) -> tensor<i64>
    "dhlo.launch"(%8, %9, %10) {arguments = [{constant = 1024 : i64}, {operand = 0 : i64}, {operand = 1 : i64}, {operand = 2 : i64}, {size = "s77"}], count = "floordiv(s77 + 15, 16)", kernel = "fft_kernel", scratch = "4096", work = "1024"} : (tensor<i64>, tensor<i64>, tensor<i64>) -> ()
    %11:2 = "dhlo.group"() ({
      %28:2 = "dhlo.fft"(%7#0, %7#1) {dims = [0], inverse = false} : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>)
      "dhlo.yield"(%28#0, %28#1) {operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> ()
    }) {anchor = "opaque", family = "fft", memory = [{buffer = 3 : i64}, {buffer = 4 : i64}], number = 3 : i64, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>, workspace = "64*(floordiv(8*s77 + 16*ite(Eq(mod((mod((mod((mod((mod((mod((mod((mod(200560490130, s77))*(mod(584803025179, s77)), s77))**2, s77))**2, s77))**2, s77))**2, s77))**2, s77))**2, s77), 0), s77, 4*s77) + 583, 64))", workspace_memory = [{buffer = 5 : i64}]} : () -> (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>)
    "dhlo.launch"() {arguments = [{buffer = 5 : i64, offset = "0"}, {size = "s77"}], count = "1", kernel = "fft_table_f32", scratch = "32*ite(Eq(mod((mod((mod((mod((mod((mod((mod((mod(200560490130, s77))*(mod(584803025179, s77)), s77))**2, s77))**2, s77))**2, s77))**2, s77))**2, s77))**2, s77), 0), s77, 4*s77) + 16*(floordiv(2*ite(Eq(mod((mod((mod((mod((mod((mod((mod((mod(200560490130, s77))*(mod(584803025179, s77)), s77))**2, s77))**2, s77))**2, s77))**2, s77))**2, s77))**2, s77), 0), s77, 4*s77) + 63, 64)) + 2048", work = "1"} : () -> ()
    %12 = "dhlo.address"(%11#0) {offset = "0"} : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<i64>
    %13 = "dhlo.address"(%11#1) {offset = "0"} : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<i64>
    %14 = "dhlo.address"(%7#0) {offset = "0"} : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<i64>
    %15 = "dhlo.address"(%7#1) {offset = "0"} : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<i64>
    "dhlo.launch"(%12, %13, %14, %15) {arguments = [{buffer = 5 : i64, offset = "0"}, {operand = 0 : i64}, {operand = 1 : i64}, {operand = 2 : i64}, {operand = 3 : i64}, {size = "s77"}], count = "1", kernel = "fft_kernel", scratch = "256*ite(Eq(mod((mod((mod((mod((mod((mod((mod((mod(200560490130, s77))*(mod(584803025179, s77)), s77))**2, s77))**2, s77))**2, s77))**2, s77))**2, s77))**2, s77), 0), s77, 4*s77) + 2048", work = "128*s77"} : (tensor<i64>, tensor<i64>, tensor<i64>, tensor<i64>) -> ()
    %16 = "dhlo.group"() ({
      %28 = "dhlo.abs"(%11#0) : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
      %29 = "dhlo.isinf"(%28) : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<?x5xi1, #dhlo.shape<["s77", "5"]>>
      %30 = "dhlo.abs"(%11#1) : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
      %31 = "dhlo.isinf"(%30) : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<?x5xi1, #dhlo.shape<["s77", "5"]>>
      %32 = "dhlo.or"(%29, %31) : (tensor<?x5xi1, #dhlo.shape<["s77", "5"]>>, tensor<?x5xi1, #dhlo.shape<["s77", "5"]>>) -> tensor<?x5xi1, #dhlo.shape<["s77", "5"]>>
      %33 = "dhlo.full"() {value = "inf"} : () -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
      %34 = "dhlo.maximum"(%28, %30) : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
      %35 = "dhlo.minimum"(%28, %30) : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
      %36 = "dhlo.full"() {value = "0.0"} : () -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
      %37 = "dhlo.eq"(%34, %36) : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<?x5xi1, #dhlo.shape<["s77", "5"]>>
      %38 = "dhlo.full"() {value = "1.0"} : () -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
      %39 = "dhlo.select"(%37, %38, %34) : (tensor<?x5xi1, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
      %40 = "dhlo.div"(%35, %39) : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
      %41 = "dhlo.mul"(%40, %40) : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
      %42 = "dhlo.add"(%41, %38) : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
      %43 = "dhlo.sqrt"(%42) : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
      %44 = "dhlo.mul"(%34, %43) : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
      %45 = "dhlo.select"(%32, %33, %44) : (tensor<?x5xi1, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
      "dhlo.yield"(%45) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> ()
    }) {anchor = "loops", family = "loops", memory = [{outputs = [1]}], number = 4 : i64, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>
    %17 = "dhlo.address"(%11#0) {offset = "0"} : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<i64>
    %18 = "dhlo.address"(%11#1) {offset = "0"} : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<i64>
    %19 = "dhlo.address"(%16) {offset = "0"} : (tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>) -> tensor<i64>
    "dhlo.launch"(%17, %18, %19) {arguments = [{size = "5*s77"}, {operand = 0 : i64}, {operand = 1 : i64}, {operand = 2 : i64}], count = "floordiv(5*s77 + 1023, 1024)", kernel = "pointwise_kernel", scratch = "0", work = "20480"} : (tensor<i64>, tensor<i64>, tensor<i64>) -> ()
    %20 = "dhlo.group"() ({
      %28 = "dhlo.full"() {value = "fpow(float(s77), 0.5)"} : () -> tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>
      %29 = "dhlo.mul"(%arg0, %28) : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>, tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>
      "dhlo.yield"(%29) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>) -> ()
    }) {anchor = "loops", family = "loops", memory = [{outputs = [2]}], number = 5 : i64, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>
    %21 = "dhlo.address"(%arg0) {offset = "0"} : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>) -> tensor<i64>
    %22 = "dhlo.address"(%20) {offset = "0"} : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>) -> tensor<i64>
    "dhlo.launch"(%21, %22) {arguments = [{size = "8*s77"}, {operand = 0 : i64}, {real = "fpow(float(s77), 0.5)"}, {operand = 1 : i64}], count = "floordiv(8*s77 + 1023, 1024)", kernel = "pointwise_kernel", scratch = "0", work = "2048"} : (tensor<i64>, tensor<i64>) -> ()
    %23 = "dhlo.group"() ({
      %28 = "dhlo.slice"(%arg0) {starts = ["1", "0"], steps = [1, 1]} : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["s77 - 1", "8"]>>
      %29 = "dhlo.reshape"(%arg1) : (tensor<?xi64, #dhlo.shape<["s15"]>>) -> tensor<?x1xi64, #dhlo.shape<["s15", "1"]>>
      %30 = "dhlo.broadcast"(%29) {dims = [0, 1]} : (tensor<?x1xi64, #dhlo.shape<["s15", "1"]>>) -> tensor<?x8xi64, #dhlo.shape<["s15", "8"]>>
      %31 = "dhlo.iota"() {dim = 1 : i64, start = "0", step = "1"} : () -> tensor<?x8xi64, #dhlo.shape<["s15", "8"]>>
      %32 = "dhlo.scatter"(%28, %30, %31, %arg2) {at = 0 : i64, dims = [0, 1], how = "set", wrap = false} : (tensor<?x8xf32, #dhlo.shape<["s77 - 1", "8"]>>, tensor<?x8xi64, #dhlo.shape<["s15", "8"]>>, tensor<?x8xi64, #dhlo.shape<["s15", "8"]>>, tensor<?x8xf32, #dhlo.shape<["s15", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["s77 - 1", "8"]>>
      "dhlo.yield"(%32) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (tensor<?x8xf32, #dhlo.shape<["s77 - 1", "8"]>>) -> ()
    }) {anchor = "opaque", family = "write", memory = [{outputs = [3]}], number = 6 : i64, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : () -> tensor<?x8xf32, #dhlo.shape<["s77 - 1", "8"]>>
    %24 = "dhlo.address"(%arg0) {offset = "32"} : (tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>) -> tensor<i64>
    %25 = "dhlo.address"(%23) {offset = "0"} : (tensor<?x8xf32, #dhlo.shape<["s77 - 1", "8"]>>) -> tensor<i64>
    "dhlo.launch"(%24, %25) {arguments = [{operand = 0 : i64}, {operand = 1 : i64}, {size = "32*s77 - 32"}], count = "floordiv(32*s77 + 16351, 16384)", kernel = "copy_flat", scratch = "0", work = "16384"} : (tensor<i64>, tensor<i64>) -> ()
    %26 = "dhlo.address"(%arg1) {offset = "0"} : (tensor<?xi64, #dhlo.shape<["s15"]>>) -> tensor<i64>
    %27 = "dhlo.address"(%arg2) {offset = "0"} : (tensor<?x8xf32, #dhlo.shape<["s15", "8"]>>) -> tensor<i64>
    "dhlo.launch"(%26, %27, %25) {arguments = [{size = "s15"}, {operand = 0 : i64}, {size = "s77 - 1"}, {errors = 1 : i64}, {operand = 1 : i64}, {operand = 2 : i64}], count = "8", kernel = "scatter_kernel", scratch = "0", work = "2*s15"} : (tensor<i64>, tensor<i64>, tensor<i64>) -> ()
    return %6, %16, %20, %23 : tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x5xf32, #dhlo.shape<["s77", "5"]>>, tensor<?x8xf32, #dhlo.shape<["s77", "8"]>>, tensor<?x8xf32, #dhlo.shape<["s77 - 1", "8"]>>
  }
}
