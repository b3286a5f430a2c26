module {
  func.func @main(%arg0: tensor<?x64xi8, #dhlo.shape<["n", "64"]>>, %arg1: tensor<?x64xui8, #dhlo.shape<["n", "64"]>>, %arg2: tensor<?xf32, #dhlo.shape<["n"]>>, %arg3: tensor<?x1xi8, #dhlo.shape<["n", "1"]>>, %arg4: tensor<64xf32>) -> (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<64x8xf32>) {
    %0 = "dhlo.weight"() {name_ = "codes"} : () -> tensor<8x64xi8>
    %1 = "dhlo.weight"() {name_ = "scales"} : () -> tensor<8x2xf32>
    %2 = "dhlo.dequantize"(%0, %1) {code = "i8", dtype = "f32"} : (tensor<8x64xi8>, tensor<8x2xf32>) -> tensor<8x64xf32>
    %3 = "dhlo.transpose"(%2) {perm = [1, 0]} : (tensor<8x64xf32>) -> tensor<64x8xf32>
    %4 = "dhlo.convert"(%arg0) : (tensor<?x64xi8, #dhlo.shape<["n", "64"]>>) -> tensor<?x64xf32, #dhlo.shape<["n", "64"]>>
    %5 = "dhlo.convert"(%arg3) : (tensor<?x1xi8, #dhlo.shape<["n", "1"]>>) -> tensor<?x1xf32, #dhlo.shape<["n", "1"]>>
    %6 = "dhlo.reshape"(%5) : (tensor<?x1xf32, #dhlo.shape<["n", "1"]>>) -> tensor<?xf32, #dhlo.shape<["n"]>>
    %7 = "dhlo.broadcast"(%6) {dims = [0]} : (tensor<?xf32, #dhlo.shape<["n"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %8 = "dhlo.rounded_matmul"(%arg0, %3) {group = 32 : i64} : (tensor<?x64xi8, #dhlo.shape<["n", "64"]>>, tensor<64x8xf32>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %9 = "dhlo.weight"() {name_ = "column.sums"} : () -> tensor<8xf32>
    %10 = "dhlo.broadcast"(%9) {dims = [1]} : (tensor<8xf32>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %11 = "dhlo.mul"(%7, %10) : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %12 = "dhlo.sub"(%8, %11) : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %13 = "dhlo.broadcast"(%arg2) {dims = [0]} : (tensor<?xf32, #dhlo.shape<["n"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %14 = "dhlo.mul"(%12, %13) : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %15 = "dhlo.full"() {value = "-120.0"} : () -> tensor<f32>
    %16 = "dhlo.broadcast"(%15) {dims = []} : (tensor<f32>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %17 = "dhlo.full"() {value = "128"} : () -> tensor<?x64xui8, #dhlo.shape<["n", "64"]>>
    %18 = "dhlo.xor"(%arg1, %17) : (tensor<?x64xui8, #dhlo.shape<["n", "64"]>>, tensor<?x64xui8, #dhlo.shape<["n", "64"]>>) -> tensor<?x64xui8, #dhlo.shape<["n", "64"]>>
    %19 = "dhlo.bitcast"(%18) : (tensor<?x64xui8, #dhlo.shape<["n", "64"]>>) -> tensor<?x64xi8, #dhlo.shape<["n", "64"]>>
    %20 = "dhlo.full"() {value = "128.0"} : () -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %21 = "dhlo.add"(%16, %20) : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %22 = "dhlo.rounded_matmul"(%19, %3) {group = 32 : i64} : (tensor<?x64xi8, #dhlo.shape<["n", "64"]>>, tensor<64x8xf32>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %23 = "dhlo.weight"() {name_ = "column.sums.1"} : () -> tensor<8xf32>
    %24 = "dhlo.broadcast"(%23) {dims = [1]} : (tensor<8xf32>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %25 = "dhlo.mul"(%21, %24) : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %26 = "dhlo.add"(%22, %25) : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %27 = "dhlo.full"() {value = "0.25"} : () -> tensor<f32>
    %28 = "dhlo.broadcast"(%27) {dims = []} : (tensor<f32>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %29 = "dhlo.mul"(%26, %28) : (tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %30 = "dhlo.rounded_matmul"(%arg0, %3) {group = 32 : i64} : (tensor<?x64xi8, #dhlo.shape<["n", "64"]>>, tensor<64x8xf32>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %31 = "dhlo.broadcast"(%arg4) {dims = [1]} : (tensor<64xf32>) -> tensor<?x64xf32, #dhlo.shape<["n", "64"]>>
    %32 = "dhlo.mul"(%4, %31) : (tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, tensor<?x64xf32, #dhlo.shape<["n", "64"]>>) -> tensor<?x64xf32, #dhlo.shape<["n", "64"]>>
    %33 = "dhlo.matmul"(%32, %3) : (tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, tensor<64x8xf32>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %34 = "dhlo.full"() {value = "2"} : () -> tensor<?x64xi8, #dhlo.shape<["n", "64"]>>
    %35 = "dhlo.mul"(%arg0, %34) : (tensor<?x64xi8, #dhlo.shape<["n", "64"]>>, tensor<?x64xi8, #dhlo.shape<["n", "64"]>>) -> tensor<?x64xi8, #dhlo.shape<["n", "64"]>>
    %36 = "dhlo.convert"(%35) : (tensor<?x64xi8, #dhlo.shape<["n", "64"]>>) -> tensor<?x64xf32, #dhlo.shape<["n", "64"]>>
    %37 = "dhlo.matmul"(%36, %3) : (tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, tensor<64x8xf32>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    %38 = "dhlo.dequantize"(%0, %1) {code = "i8", dtype = "f32"} : (tensor<8x64xi8>, tensor<8x2xf32>) -> tensor<8x64xf32>
    %39 = "dhlo.transpose"(%38) {perm = [1, 0]} : (tensor<8x64xf32>) -> tensor<64x8xf32>
    %40 = "dhlo.matmul"(%4, %39) : (tensor<?x64xf32, #dhlo.shape<["n", "64"]>>, tensor<64x8xf32>) -> tensor<?x8xf32, #dhlo.shape<["n", "8"]>>
    return %14, %29, %30, %33, %37, %40, %39 : tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<?x8xf32, #dhlo.shape<["n", "8"]>>, tensor<64x8xf32>
  }
}
