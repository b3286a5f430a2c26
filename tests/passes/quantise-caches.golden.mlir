module attributes {dhlo.caches = [{after = 144 : i64, before = 384 : i64, error = 0.003937007874015748 : f64, format = "int8", name = "keys", reason = ""}, {after = 144 : i64, before = 384 : i64, error = 0.003937007874015748 : f64, format = "int8", name = "values", reason = ""}, {after = 8 : i64, before = 8 : i64, error = 0.000000e+00 : f64, format = "", name = "calls", reason = "holds i64"}], dhlo.kv_cache = "int8", dhlo.symbols = {n = [1, 6]}} {
  func.func @main(%arg0: tensor<1x4x?x8xf32, #dhlo.shape<["1", "4", "n", "8"]>>, %arg1: tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>, %arg2: tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>, %arg3: tensor<?xi64, #dhlo.shape<["n"]>>) -> (tensor<1x4x?x8xf32, #dhlo.shape<["1", "4", "n", "8"]>>, tensor<f32>, tensor<1x6x2x8xi8> {dhlo.state = "keys"}, tensor<1x6x16xi8> {dhlo.state = "values"}, tensor<i64> {dhlo.state = "calls"}, tensor<1x6x2x1xf32> {dhlo.state = "keys.scale"}, tensor<1x6x2xf32> {dhlo.state = "values.scale"}) {
    %0 = "dhlo.state"() {name_ = "keys"} : () -> tensor<1x6x2x8xi8>
    %1 = "dhlo.state"() {name_ = "keys.scale"} : () -> tensor<1x6x2x1xf32>
    %2 = "dhlo.convert"(%0) : (tensor<1x6x2x8xi8>) -> tensor<1x6x2x8xf32>
    %3 = "dhlo.broadcast"(%1) {dims = [0, 1, 2, 3]} : (tensor<1x6x2x1xf32>) -> tensor<1x6x2x8xf32>
    %4 = "dhlo.mul"(%2, %3) : (tensor<1x6x2x8xf32>, tensor<1x6x2x8xf32>) -> tensor<1x6x2x8xf32>
    %5 = "dhlo.state"() {name_ = "values"} : () -> tensor<1x6x16xi8>
    %6 = "dhlo.state"() {name_ = "values.scale"} : () -> tensor<1x6x2xf32>
    %7 = "dhlo.reduce"(%4) {dims = [0, 1, 2, 3], how = "sum"} : (tensor<1x6x2x8xf32>) -> tensor<f32>
    %8 = "dhlo.abs"(%arg1) : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %9 = "dhlo.reduce"(%8) {dims = [3], how = "max"} : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>
    %10 = "dhlo.full"() {value = "127.0"} : () -> tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>
    %11 = "dhlo.div"(%9, %10) : (tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>, tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>) -> tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>
    %12 = "dhlo.full"() {value = "0.0"} : () -> tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>
    %13 = "dhlo.eq"(%11, %12) : (tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>, tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>) -> tensor<1x?x2xi1, #dhlo.shape<["1", "n", "2"]>>
    %14 = "dhlo.full"() {value = "1.0"} : () -> tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>
    %15 = "dhlo.select"(%13, %14, %11) : (tensor<1x?x2xi1, #dhlo.shape<["1", "n", "2"]>>, tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>, tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>) -> tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>
    %16 = "dhlo.broadcast"(%15) {dims = [0, 1, 2]} : (tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>) -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %17 = "dhlo.div"(%arg1, %16) : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>, tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %18 = "dhlo.round"(%17) : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %19 = "dhlo.full"() {value = "-127.0"} : () -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %20 = "dhlo.maximum"(%18, %19) : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>, tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %21 = "dhlo.full"() {value = "127.0"} : () -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %22 = "dhlo.minimum"(%20, %21) : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>, tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %23 = "dhlo.convert"(%22) : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x?x2x8xi8, #dhlo.shape<["1", "n", "2", "8"]>>
    %24 = "dhlo.reshape"(%11) : (tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>) -> tensor<1x?x2x1xf32, #dhlo.shape<["1", "n", "2", "1"]>>
    %25 = "dhlo.scatter"(%0, %arg3, %23) {at = 1 : i64, dims = [1], how = "set", wrap = false} : (tensor<1x6x2x8xi8>, tensor<?xi64, #dhlo.shape<["n"]>>, tensor<1x?x2x8xi8, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x6x2x8xi8>
    %26 = "dhlo.scatter"(%1, %arg3, %24) {at = 1 : i64, dims = [1], how = "set", wrap = false} : (tensor<1x6x2x1xf32>, tensor<?xi64, #dhlo.shape<["n"]>>, tensor<1x?x2x1xf32, #dhlo.shape<["1", "n", "2", "1"]>>) -> tensor<1x6x2x1xf32>
    %27 = "dhlo.reshape"(%arg2) : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x?x16xf32, #dhlo.shape<["1", "n", "16"]>>
    %28 = "dhlo.reshape"(%27) : (tensor<1x?x16xf32, #dhlo.shape<["1", "n", "16"]>>) -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %29 = "dhlo.abs"(%28) : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %30 = "dhlo.reduce"(%29) {dims = [3], how = "max"} : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>
    %31 = "dhlo.full"() {value = "127.0"} : () -> tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>
    %32 = "dhlo.div"(%30, %31) : (tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>, tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>) -> tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>
    %33 = "dhlo.full"() {value = "0.0"} : () -> tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>
    %34 = "dhlo.eq"(%32, %33) : (tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>, tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>) -> tensor<1x?x2xi1, #dhlo.shape<["1", "n", "2"]>>
    %35 = "dhlo.full"() {value = "1.0"} : () -> tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>
    %36 = "dhlo.select"(%34, %35, %32) : (tensor<1x?x2xi1, #dhlo.shape<["1", "n", "2"]>>, tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>, tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>) -> tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>
    %37 = "dhlo.broadcast"(%36) {dims = [0, 1, 2]} : (tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>) -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %38 = "dhlo.div"(%28, %37) : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>, tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %39 = "dhlo.round"(%38) : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %40 = "dhlo.full"() {value = "-127.0"} : () -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %41 = "dhlo.maximum"(%39, %40) : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>, tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %42 = "dhlo.full"() {value = "127.0"} : () -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %43 = "dhlo.minimum"(%41, %42) : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>, tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>
    %44 = "dhlo.convert"(%43) : (tensor<1x?x2x8xf32, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x?x2x8xi8, #dhlo.shape<["1", "n", "2", "8"]>>
    %45 = "dhlo.reshape"(%44) : (tensor<1x?x2x8xi8, #dhlo.shape<["1", "n", "2", "8"]>>) -> tensor<1x?x16xi8, #dhlo.shape<["1", "n", "16"]>>
    %46 = "dhlo.reshape"(%32) : (tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>) -> tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>
    %47 = "dhlo.update_slice"(%5, %45) {starts = ["0", "0", "0"]} : (tensor<1x6x16xi8>, tensor<1x?x16xi8, #dhlo.shape<["1", "n", "16"]>>) -> tensor<1x6x16xi8>
    %48 = "dhlo.update_slice"(%6, %46) {starts = ["0", "0", "0"]} : (tensor<1x6x2xf32>, tensor<1x?x2xf32, #dhlo.shape<["1", "n", "2"]>>) -> tensor<1x6x2xf32>
    %49 = "dhlo.transpose"(%25) {perm = [0, 2, 1, 3]} : (tensor<1x6x2x8xi8>) -> tensor<1x2x6x8xi8>
    %50 = "dhlo.transpose"(%26) {perm = [0, 2, 1, 3]} : (tensor<1x6x2x1xf32>) -> tensor<1x2x6x1xf32>
    %51 = "dhlo.dequantize"(%49, %50) {code = "i8", dtype = "f32"} : (tensor<1x2x6x8xi8>, tensor<1x2x6x1xf32>) -> tensor<1x2x6x8xf32>
    %52 = "dhlo.reshape"(%47) : (tensor<1x6x16xi8>) -> tensor<1x6x2x8xi8>
    %53 = "dhlo.reshape"(%48) : (tensor<1x6x2xf32>) -> tensor<1x6x2x1xf32>
    %54 = "dhlo.transpose"(%52) {perm = [0, 2, 1, 3]} : (tensor<1x6x2x8xi8>) -> tensor<1x2x6x8xi8>
    %55 = "dhlo.transpose"(%53) {perm = [0, 2, 1, 3]} : (tensor<1x6x2x1xf32>) -> tensor<1x2x6x1xf32>
    %56 = "dhlo.dequantize"(%54, %55) {code = "i8", dtype = "f32"} : (tensor<1x2x6x8xi8>, tensor<1x2x6x1xf32>) -> tensor<1x2x6x8xf32>
    %57 = "dhlo.attention"(%arg0, %51, %56) {causal = false, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0>, past = "0", scale = 3.500000e-01 : f64, softcap = 0.000000e+00 : f64} : (tensor<1x4x?x8xf32, #dhlo.shape<["1", "4", "n", "8"]>>, tensor<1x2x6x8xf32>, tensor<1x2x6x8xf32>) -> tensor<1x4x?x8xf32, #dhlo.shape<["1", "4", "n", "8"]>>
    %58 = "dhlo.full"() {value = "7"} : () -> tensor<i64>
    return %57, %7, %25, %47, %58, %26, %48 : tensor<1x4x?x8xf32, #dhlo.shape<["1", "4", "n", "8"]>>, tensor<f32>, tensor<1x6x2x8xi8>, tensor<1x6x16xi8>, tensor<i64>, tensor<1x6x2x1xf32>, tensor<1x6x2xf32>
  }
}
