module {
  func.func @main(%arg0: tensor<?x2x9x5xui8, #dhlo.shape<["n", "2", "9", "5"]>>, %arg1: tensor<?x2x9x5xi8, #dhlo.shape<["n", "2", "9", "5"]>>, %arg2: tensor<?x4xui8, #dhlo.shape<["n", "4"]>>) -> (tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>, tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>, tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>, tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>, tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>, tensor<?x4xui8, #dhlo.shape<["n", "4"]>>, tensor<?x4xui8, #dhlo.shape<["n", "4"]>>, tensor<?x4xui8, #dhlo.shape<["n", "4"]>>, tensor<?x4xui8, #dhlo.shape<["n", "4"]>>) {
    %0 = "dhlo.full"() {value = "0.0234002"} : () -> tensor<?x2x9x5xf32, #dhlo.shape<["n", "2", "9", "5"]>>
    %1 = "dhlo.full"() {value = "-0.5"} : () -> tensor<?x2x9x5xf32, #dhlo.shape<["n", "2", "9", "5"]>>
    %2 = "dhlo.pool"(%arg0) {count_pad = true, dilation = [1, 1], divisor = 0 : i64, how = "max", padding = [1, 1], stride = [2, 2], window = [3, 3]} : (tensor<?x2x9x5xui8, #dhlo.shape<["n", "2", "9", "5"]>>) -> tensor<?x2x5x3xui8, #dhlo.shape<["n", "2", "5", "3"]>>
    %3 = "dhlo.convert"(%2) : (tensor<?x2x5x3xui8, #dhlo.shape<["n", "2", "5", "3"]>>) -> tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>
    %4 = "dhlo.full"() {value = "7.0"} : () -> tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>
    %5 = "dhlo.sub"(%3, %4) : (tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>, tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>) -> tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>
    %6 = "dhlo.full"() {value = "0.02340020053088665"} : () -> tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>
    %7 = "dhlo.mul"(%5, %6) : (tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>, tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>) -> tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>
    %8 = "dhlo.convert"(%arg1) : (tensor<?x2x9x5xi8, #dhlo.shape<["n", "2", "9", "5"]>>) -> tensor<?x2x9x5xf32, #dhlo.shape<["n", "2", "9", "5"]>>
    %9 = "dhlo.mul"(%8, %0) : (tensor<?x2x9x5xf32, #dhlo.shape<["n", "2", "9", "5"]>>, tensor<?x2x9x5xf32, #dhlo.shape<["n", "2", "9", "5"]>>) -> tensor<?x2x9x5xf32, #dhlo.shape<["n", "2", "9", "5"]>>
    %10 = "dhlo.pool"(%arg1) {count_pad = true, dilation = [1, 1], divisor = 0 : i64, how = "max", padding = [1, 1], stride = [2, 2], window = [3, 3]} : (tensor<?x2x9x5xi8, #dhlo.shape<["n", "2", "9", "5"]>>) -> tensor<?x2x5x3xi8, #dhlo.shape<["n", "2", "5", "3"]>>
    %11 = "dhlo.convert"(%10) : (tensor<?x2x5x3xi8, #dhlo.shape<["n", "2", "5", "3"]>>) -> tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>
    %12 = "dhlo.full"() {value = "0.02340020053088665"} : () -> tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>
    %13 = "dhlo.mul"(%11, %12) : (tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>, tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>) -> tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>
    %14 = "dhlo.mul"(%8, %1) : (tensor<?x2x9x5xf32, #dhlo.shape<["n", "2", "9", "5"]>>, tensor<?x2x9x5xf32, #dhlo.shape<["n", "2", "9", "5"]>>) -> tensor<?x2x9x5xf32, #dhlo.shape<["n", "2", "9", "5"]>>
    %15 = "dhlo.pool"(%14) {count_pad = true, dilation = [1, 1], divisor = 0 : i64, how = "max", padding = [1, 1], stride = [2, 2], window = [3, 3]} : (tensor<?x2x9x5xf32, #dhlo.shape<["n", "2", "9", "5"]>>) -> tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>
    %16 = "dhlo.pool"(%9) {count_pad = true, dilation = [1, 1], divisor = 0 : i64, how = "avg", padding = [1, 1], stride = [2, 2], window = [3, 3]} : (tensor<?x2x9x5xf32, #dhlo.shape<["n", "2", "9", "5"]>>) -> tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>
    %17 = "dhlo.pool"(%9) {count_pad = true, dilation = [2, 2], divisor = 0 : i64, how = "max", padding = [1, 1], stride = [2, 2], window = [2, 2]} : (tensor<?x2x9x5xf32, #dhlo.shape<["n", "2", "9", "5"]>>) -> tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>
    %18 = "dhlo.full"() {value = "128.0"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %19 = "dhlo.full"() {value = "0.0"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %20 = "dhlo.full"() {value = "255.0"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %21 = "dhlo.full"() {value = "0.025"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %22 = "dhlo.full"() {value = "40.0"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %23 = "dhlo.full"() {value = "40.1"} : () -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %24 = "dhlo.convert"(%arg2) : (tensor<?x4xui8, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %25 = "dhlo.sub"(%24, %18) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %26 = "dhlo.mul"(%25, %21) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %27 = "dhlo.mul"(%26, %22) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %28 = "dhlo.round"(%27) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %29 = "dhlo.add"(%28, %18) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %30 = "dhlo.maximum"(%28, %19) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %31 = "dhlo.minimum"(%30, %20) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %32 = "dhlo.convert"(%31) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xui8, #dhlo.shape<["n", "4"]>>
    %33 = "dhlo.mul"(%26, %23) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %34 = "dhlo.round"(%33) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %35 = "dhlo.add"(%34, %18) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %36 = "dhlo.maximum"(%35, %19) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %37 = "dhlo.minimum"(%36, %20) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %38 = "dhlo.convert"(%37) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xui8, #dhlo.shape<["n", "4"]>>
    %39 = "dhlo.maximum"(%29, %18) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %40 = "dhlo.minimum"(%39, %20) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>, tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xf32, #dhlo.shape<["n", "4"]>>
    %41 = "dhlo.convert"(%40) : (tensor<?x4xf32, #dhlo.shape<["n", "4"]>>) -> tensor<?x4xui8, #dhlo.shape<["n", "4"]>>
    return %7, %13, %15, %16, %17, %arg2, %32, %38, %41 : tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>, tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>, tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>, tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>, tensor<?x2x5x3xf32, #dhlo.shape<["n", "2", "5", "3"]>>, tensor<?x4xui8, #dhlo.shape<["n", "4"]>>, tensor<?x4xui8, #dhlo.shape<["n", "4"]>>, tensor<?x4xui8, #dhlo.shape<["n", "4"]>>, tensor<?x4xui8, #dhlo.shape<["n", "4"]>>
  }
}
